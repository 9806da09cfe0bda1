"""The vmap rule of a registered op: the batch joins the rows, or torch's ops compute the samples one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tridal.ops.signature import Signature
from tridal.pytorch.path.nodes import as_tuple
from tridal.pytorch.path.rules import OpRun, Results

Tensor = torch.Tensor
InDims: TypeAlias = tuple[int | None, ...]


def vmap_rule(
    signature: Signature, op: Callable[..., Any], fake: OpRun, by_torch: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Any, Any]]:
    """Returns the function for `torch.library.register_vmap`.

    `op` is the registered op, and `by_torch` computes one sample in torch's ops, with an empty tensor for each absent
    result.
    """

    def vmap(info: Any, in_dims: InDims, *arguments: Any) -> tuple[Any, Any]:
        arguments = signature.complete(arguments)
        in_dims = (*in_dims, *[None] * (len(arguments) - len(in_dims)))
        shapes = _example_shapes(fake, in_dims, arguments)  # checks the arguments
        batched = join_batch(signature, info.batch_size, in_dims, arguments)
        if batched is not None:
            found = as_tuple(op(*batched))
            results = tuple(f.reshape(info.batch_size, *s) for f, s in zip(found, shapes, strict=True) if f is not None)
        else:
            results = _by_sample(info.batch_size, in_dims, arguments, by_torch)
        return (results[0], 0) if len(results) == 1 else (results, (0,) * len(results))

    return vmap


def join_batch(
    signature: Signature, batch_size: int, in_dims: InDims, arguments: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Returns the arguments of one call for all samples of a vmap, in which the batch joins the rows.

    Returns None if there is none: a tensor with a number per column is batched, or a result is a sum over rows.
    """
    named = signature.named(arguments)
    roles, results = signature.roles(named), signature.result_roles(named)
    columns = any(role == "column" and axis is not None for role, axis in zip(roles, in_dims, strict=True))
    if columns or batch_size == 0 or {"whole", "number"} & {*roles, *results} or "column" in results:
        return None
    main, axis = arguments[signature.main], in_dims[signature.main]
    rank = max(main.dim() - (axis is not None), 1)
    joined = list(arguments)
    for index in signature.tensors:
        role, tensor = roles[index], arguments[index]
        if tensor is not None and role != "column":
            axis = in_dims[index]
            first = tensor.expand(batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
            missing = rank + 1 - first.dim() if role in ("element", "mask") else 0
            joined[index] = first.reshape(batch_size, *[1] * missing, *first.shape[1:])
            if signature.dim is not None and rank > 1:  # the dim of rows is the same in all calls
                joined[index] = joined[index].flatten(0, 1)
    if "dim" in named:
        joined[signature.names.index("dim")] = named["dim"] % rank + 1
    return tuple(joined)


def _example_shapes(fake: OpRun, in_dims: InDims, arguments: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """Returns the shapes of the results of one sample."""
    given = [
        _without_axis(argument, axis) if isinstance(argument, torch.Tensor) else argument
        for argument, axis in zip(arguments, in_dims, strict=True)
    ]
    return [(0,) if result is None else tuple(result.shape) for result in fake(*given)]


def _without_axis(tensor: Tensor, axis: int | None) -> Tensor:
    """Returns a tensor like one sample. It is not a slice, because DTensors of torch 2.11 do not support `select`."""
    if axis is None:
        return tensor
    shape = [size for position, size in enumerate(tensor.shape) if position != axis % tensor.dim()]
    return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(shape)


def _by_sample(
    batch_size: int, in_dims: InDims, arguments: tuple[Any, ...], compute: Callable[..., Results]
) -> tuple[Any, ...]:
    """Returns the results of a vmap whose samples are computed one by one.

    `torch.vmap` cannot be used here: functorch's front mode is off in a rule.
    """

    def sample(index: int) -> Results:
        given = zip(arguments, in_dims, strict=True)
        return compute(*(a.select(axis, index) if isinstance(axis, int) else a for a, axis in given))

    if batch_size == 0:
        arguments = tuple(
            a.new_zeros((*a.shape[:axis], 1, *a.shape[axis + 1 :])) if isinstance(axis, int) else a
            for a, axis in zip(arguments, in_dims, strict=True)
        )
        return tuple(result.new_empty((0, *result.shape)) for result in sample(0) if result is not None)
    return tuple(map(torch.stack, zip(*map(sample, range(batch_size)), strict=True)))
