"""Makes the tensors and the arguments of a case: values, layouts in memory, and calls."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from tridal.ops.op import Op
from tridal.ops.signature import Arguments
from tridal.testing.cases import Case, Layout, Mask, Values, is_choice, op_cases, ordinary
from tridal.testing.exact import Call, Named
from tridal.testing.implementation import Implementation

Tensor = torch.Tensor


def make_tensors(case: Case, op: Op, device: torch.device) -> dict[str, Tensor | None]:
    """Returns the tensors of a case by name; None for absent ones. Those with a number per element have its layout."""
    made = {**_by_role(case, op), **op_cases(op).tensors(case)}
    tensors: dict[str, Tensor | None] = {}
    for index, argument in enumerate(a for a in op.arguments if a.type == "Tensor"):
        tensor = made[argument.name]
        dtype = dict(case.dtypes).get(argument.name, case.dtype)
        dtype = dtype if tensor.is_floating_point() else dtype_name(tensor.dtype)
        layout = dict(case.layouts).get(argument.name, case.layout)
        layout = layout if argument.role == "element" or index == 0 else "contiguous"
        absent = argument.name in case.absent
        tensors[argument.name] = None if absent else with_layout(tensor, layout, dtype, device)
    return tensors


def _by_role(case: Case, op: Op) -> dict[str, Tensor]:
    """Returns the tensors of a case by their role. The first one has `case.values`.

    The others have ordinary values, except that all numbers per element are small or constant together.
    """
    first = len(case.shape) - case.dims if case.dims > 1 else case.dim % max(len(case.shape), 1)
    columns = case.shape[first : first + case.dims]
    per_row = case.shape[:first] + case.shape[first + case.dims :]
    tensors: dict[str, Tensor] = {}
    for index, argument in enumerate(a for a in op.arguments if a.type == "Tensor"):
        role = "index" if callable(argument.role) else argument.role  # kernels compute indices
        shape = {"element": case.shape, "column": columns}.get(str(role), per_row)
        if argument.per_block and case.block_dims is not None:
            shape = (*case.shape[: case.block_dims], *[1] * (first - case.block_dims), *columns)
        if role == "index":
            generator = torch.Generator().manual_seed(index)
            tensors[argument.name] = torch.randint(max(1, math.prod(columns)), per_row, generator=generator)
            continue
        alike = index == 0 or (role == "element" and case.values in ("small", "constant"))
        values = make_values(case.values if alike else "normal", shape, case.dim, seed=index and index + 3)
        tensors[argument.name] = values
    return tensors


def make_values(kind: Values, shape: tuple[int, ...], dim: int, seed: int = 0) -> torch.Tensor:
    """Returns float64 values on the CPU. They are the same in every run.

    If only one row has special values, it is the first row along `dim`. The standard deviation is 3 for seed 0, else 1.

    Example:
        >>> tridal.testing.make_values("row of -inf", (2, 3), dim=-1)
        tensor([[   -inf,    -inf,    -inf],
                [ 1.7053, -3.2536, -4.1958]], dtype=torch.float64)
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * (1 if seed else 3)
    if x.numel() == 0 or x.dim() == 0:
        return x
    chosen = torch.rand(shape, generator=generator) < 0.1
    other_dim = (dim + 1) % x.dim()
    row = x.select(other_dim, 0)  # a row along `dim`; for a 1-d tensor, the first element
    if kind == "small":
        x /= 1000
    elif kind == "subnormal":  # in float32 and bfloat16; zeros in float16
        x *= 2.0**-130
    elif kind == "shifted":
        x += 10_000
    elif kind == "constant":
        x.fill_(-1.5)
    elif kind == "dominant":
        x[chosen] += 60
    elif kind == "largest":
        x = torch.where(chosen, 3e38, -3e38).double()
    elif kind == "some -inf":
        x[chosen] = -torch.inf
    elif kind == "row of -inf":
        row.fill_(-torch.inf)
    elif kind in ("some +inf", "some nan"):
        row[chosen.select(other_dim, 0)] = torch.inf if kind == "some +inf" else torch.nan
        if kind == "some nan":  # programs that exchange statistics mark absent ones by bits: test NaN with all bits set
            row[row.isnan() & (torch.rand(row.shape, generator=generator) < 0.5)] = torch.tensor(-1).view(torch.float64)
    return x


def make_mask(kind: Mask, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Returns a mask for an input of this shape. It excludes the whole first row, unless it is broadcast over rows."""
    operation, _, variant = kind.partition(" ")
    batches = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
    mask_shape = {"keys": shape[-1:], "batches": batches}.get(variant, shape)
    keep = torch.rand(mask_shape, generator=torch.Generator().manual_seed(2)) < 0.7
    if variant not in ("keys", "batches"):
        keep[(0,) * (len(shape) - 1)] = False
    if operation == "boolean":
        return with_layout(keep, "sliced" if variant == "sliced" else "contiguous", "bool", device)
    added = make_values("normal", mask_shape, -1, seed=3).masked_fill(~keep, -torch.inf)
    return with_layout(added, "contiguous", "float16" if variant == "halves" else "float32", device)


def with_layout(source: torch.Tensor, layout: Layout, dtype: str, device: torch.device) -> torch.Tensor:
    """Returns a tensor with these values, this memory layout and this dtype. "expanded" repeats `source[0]`."""
    source = source.to(getattr(torch, dtype))
    shape, rank = source.shape, source.dim()
    if layout == "contiguous":
        return source.to(device)
    if layout == "expanded":
        return source[:1].to(device).expand(shape)
    if layout == "channels_last":
        return source.to(device).to(memory_format=torch.channels_last)
    empty = functools.partial(torch.empty, dtype=source.dtype, device=device)
    if layout == "transposed":
        result: torch.Tensor = empty((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
    elif layout == "sliced":  # the address of the slice is not a multiple of 16 bytes
        result = empty((*shape[:-1], shape[-1] + 4))[..., 1 : 1 + shape[-1]]
    elif layout == "stepped":
        result = empty((*shape[:-1], 2 * shape[-1]))[..., ::2]
    else:  # permuted: dims in reverse order, each a slice of a longer one, so that no two dims can be merged
        base = empty([size + 1 for size in reversed(shape)])
        result = base[(slice(1, None),) * rank].permute(*reversed(range(rank)))
    result.copy_(source)
    return result


def make_call(case: Case, op: Op, tensors: Named, mask: Tensor | None) -> tuple[Call, dict[str, torch.dtype]]:
    """The call of a case on the CPU, and the dtypes of its results."""
    numbers = dict(case.numbers)
    named: dict[str, Any] = {a.name: numbers.get(a.name, ordinary(a)) for a in op.signature.arguments}
    for argument in op.arguments:
        if argument.type == "int" and is_choice(argument):
            named[argument.name] = (argument.range or ()).index(named[argument.name])
    given = [(a.role, tensors[a.name].dtype) for a in op.arguments if a.name in tensors]
    floating = [dtype for role, dtype in given if role in ("element", "whole") and dtype.is_floating_point]
    dtype = functools.reduce(torch.promote_types, floating) if case.cast is None else getattr(torch, case.cast)
    named |= {a.name: dtype for a in op.signature.arguments if a.type == "ScalarType"}
    named |= {a.name: [False] * len(op.gradient_groups) for a in op.signature.arguments if a.type == "bool[]"}
    named |= {"dim": case.dim, "dims": case.dims, "mask": mask, "causal": case.causal, **tensors}
    named |= {"scale": 1.0 if case.scale is None else case.scale, "zero_masked_rows": case.masked_rows == "zero"}
    dtypes = Arguments(op.signature, [named[name] for name in op.signature.names]).dtypes
    for argument in op.arguments:
        if argument.name in tensors:
            tensor = tensors[argument.name].cpu()
            named[argument.name] = tensor.to(dtype) if case.cast and argument.role == "element" else tensor
    named["mask"] = None if mask is None else mask.cpu()
    arguments = tuple(named[name] for name in op.signature.names)
    call = Call(op, arguments)
    return call, dict(zip((result.name for result in op.results), dtypes, strict=True))


def call_function(
    case: Case, op: Op, implementation: Implementation, tensors: Mapping[str, Tensor | None], mask: Tensor | None
) -> Named:
    """Calls the function of a case. Returns its results by name."""
    device, given, extra = implementation.device, dict(case.numbers), op_cases(op).options
    keywords: dict[str, Any] = {"dim": case.dim} if "dim" in op.signature.names else {}
    if case.cast is not None:
        keywords["dtype"] = getattr(torch, case.cast)
    if any(argument.name == "dims" for argument in op.arguments):
        keywords = {"normalized_shape": case.shape[len(case.shape) - case.dims :]}
    if case.stream:
        keywords["stream"] = torch.get_device_module(device.type).current_stream(device)
    if case.modified:
        keywords |= {"scale": case.scale, "mask": mask, "causal": case.causal, "masked_rows": case.masked_rows}
    function = implementation.function(case.op)
    optional = any(argument.optional for argument in op.arguments if argument.type == "Tensor")
    parameters = inspect.signature(function).parameters.values() if optional else ()
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    given_first = [a for a in op.arguments if a.type == "Tensor" and a.name not in named]
    first = [a for a in given_first if not a.optional or a.name in required]
    for argument in (*(a for a in op.arguments if a not in first), *extra):
        name, needed = argument.name, argument.type == "float" or argument.range is not None
        needed = needed and argument.default is argument.neutral is None and not argument.optional
        if (argument.optional or name in named) and tensors.get(name) is not None:
            keywords[name] = tensors[name]
        elif name in given or needed:
            keywords[name] = given.get(name, ordinary(argument))
    keywords = {name: value for name, value in keywords.items() if value != ""}  # "" stands for no choice
    found: Any = function(*(tensors.get(argument.name) for argument in first), **keywords)
    found = (found,) if isinstance(found, Tensor) else found
    values = [tensors.get(a.name, given.get(a.name, ordinary(a))) for a in op.signature.arguments]
    arguments = Arguments(op.signature, values)
    names = [r.name for index, r in enumerate(op.results) if r.returned and not arguments.lacks(index)]
    return dict(zip(names, [tensor for tensor in found if tensor is not None], strict=op.steps is None))


def make_gradients(case: Case, results: list[Tensor]) -> list[Tensor]:
    """Random gradients of results."""
    grads = []
    for index, result in enumerate(results):
        values = make_values("normal", tuple(result.shape), case.dim, seed=1 + index)
        layout = case.grad_layout if result.shape == case.shape else "contiguous"
        grads.append(with_layout(values, layout, dtype_name(result.dtype), result.device))
    return grads


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")
