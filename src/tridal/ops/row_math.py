"""An op of rows in torch's ops: its reference and its gradient, with the arguments of the registered ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.ops.op import Op
from tridal.ops.row_reduce import RowReduce, has_tangent
from tridal.ops.scale_mask import ScoreModification, modify_scores
from tridal.ops.signature import Arguments

Tensor = torch.Tensor
Results = tuple[Tensor | None, ...]


def modification_of(op: Op, named: dict[str, Any]) -> ScoreModification | None:
    """Tells how the scores of a call are modified, or None if they are not."""
    if not op.scale_mask:
        return None
    found = ScoreModification(named["scale"], named["mask"], named["causal"], named["zero_masked_rows"])
    changes = found.mask is not None or found.scale != 1 or found.causal or found.zero_masked_rows
    return found if changes else None


def compute(
    op: Op, *arguments: Any, reduce: RowReduce | None = None, unmodified: Callable[..., Tensor] | None = None
) -> Results:
    """Computes an op in torch's ops. Autograd can differentiate them.

    Args:
        arguments: those of the registered op.
        reduce: reduces rows that are sharded over ranks. The tensors are shards then.
        unmodified: `unmodified(scores, dim, dtype, *parameters)` computes the op of modified scores.

    Example:
        >>> from tridal.library import SWIGLU
        >>> tridal.ops.compute(SWIGLU, torch.tensor([1.0, -1.0]), torch.tensor([2.0, 2.0]), -1, None, None, "")
        (tensor([ 1.4621, -0.5379]),)
    """
    given = Arguments(op.signature, arguments)
    named, modification = given.named, modification_of(op, given.named)
    if modification is not None:
        return (_compute_scores(op, given, modification, unmodified),)
    if reduce is None and op.torch_function is not None and not has_tangent(arguments[0]):
        return with_new_memory((op.torch_function(arguments[0], named["dim"], dtype=named["dtype"]),), arguments)
    found, shapes = _call(op.reference, given, reduce), given.shapes
    results: list[Tensor | None] = []  # torch.compile does not trace a call of `list[...]`
    for tensor, role, dtype in zip(found, given.result_roles, given.dtypes, strict=True):
        if role is None or tensor is None:
            results.append(None)
        else:
            has_shape = role == "whole" or tensor.shape == shapes[role]  # then `reshape` would return a view
            results.append((tensor if has_shape else tensor.reshape(shapes[role])).to(dtype))
    return with_new_memory(results, arguments)


def reference_of(op: Op, x: Tensor, dim: int, values: tuple[float, ...]) -> Any:
    """Computes the reference of an op of one tensor in x's dtype. torch's function is not used."""
    x = x if x.dim() else x.reshape(1)
    return op.reference(x, RowReduce(x, dim), **dict(zip(op.parameters, values, strict=True)))


def raw_results(op: Op, *arguments: Any) -> tuple[Any, ...]:
    """Computes the reference in the dtype of sums. torch's function is not used."""
    return _call(op.reference, Arguments(op.signature, arguments))


def raw_gradients(op: Op, *arguments: Any) -> tuple[Any, ...]:
    """Computes the gradient in the dtype of sums, for the arguments of the registered gradient."""
    return _call(op.gradient, Arguments(op.gradient_signature, arguments), takes_mask=op.gradient_takes_mask)


def _compute_scores(
    op: Op, arguments: Arguments, modification: ScoreModification, unmodified: Callable[..., Tensor] | None
) -> Tensor:
    """Computes modified scores. They are modified in at least float32."""
    named = arguments.named
    dim, dtype = named["dim"], named["dtype"]
    scores = arguments.main.to(dtype).to(torch.promote_types(dtype, torch.float32))
    scores, empty = modify_scores(scores, dim, modification)
    parameters = [named[name] for name in op.parameters]
    if unmodified is None:
        result = compute(op, scores, dim, scores.dtype, *parameters)[0]
        assert result is not None
    else:
        result = unmodified(scores, dim, scores.dtype, *parameters)
    return (result if empty is None else result.masked_fill(empty, 0.0)).to(dtype)


def compute_gradient(op: Op, *arguments: Any, reduce: RowReduce | None = None) -> Results:
    """Computes the gradients of an op from the registered gradient's arguments. Autograd can differentiate them.

    A gradient that is added to the first one, see `RowKernel.added`, is no argument of `Op.gradient`.

    Example:
        >>> from tridal.library import SWIGLU
        >>> grad, gate, up = torch.ones(2), torch.tensor([1.0, -1.0]), torch.tensor([2.0, 2.0])
        >>> tridal.ops.compute_gradient(SWIGLU, grad, gate, up, -1, None, None, [True, True])
        (tensor([1.8553, 0.1447]), tensor([ 0.7311, -0.2689]))
    """
    given = Arguments(op.gradient_signature, arguments)
    signature, rows, main = given.signature, given.rows, given.main
    addend = None if signature.kernel is None else given.named.get(str(signature.kernel.added))
    addend = addend if addend is not None and addend.shape == main.shape else None
    needed = [not given.lacks(index) for index in range(len(signature.results))]
    dtypes = given.dtypes
    if arguments[0] is None and signature.steps is None:
        shapes = given.shapes | {None: ()}
        zeros = [main.new_zeros(shapes[role], dtype=d) for role, d in zip(given.result_roles, dtypes, strict=True)]
        first = None if addend is None else addend.clone()
        return tuple(z if need else None for z, need in zip((first, *zeros[1:]), needed, strict=True))
    found = _call(op.gradient, given, reduce, op.gradient_takes_mask)
    results: list[Tensor | None] = []
    roles = given.result_roles
    for result, role, tensor, dtype, need in zip(signature.results, roles, found, dtypes, needed, strict=True):
        if not need or tensor is None:
            results.append(None)
        elif result.role == "whole":
            results.append(tensor.to(dtype))
        elif role == "block":  # the dims of size 1 are those within a block
            summed = tensor.sum([dim for dim in range(rows.first) if given.shapes["block"][dim] == 1], keepdim=True)
            results.append(summed.to(dtype).reshape(given.shapes["block"]))
        elif result.role == "element":
            gradient = tensor.reshape(main.shape)
            gradient = gradient + addend if addend is not None and not results else gradient
            results.append(gradient.to(dtype))
        else:
            terms = tensor.movedim(rows.first, -1)
            summed = terms.flatten(0, -2).sum(0) if terms.dim() > 1 else terms
            results.append(summed.reshape(rows.per_column(main.shape)))
    return with_new_memory(results, arguments)


def with_new_memory(results: Sequence[Tensor | None], arguments: tuple[Any, ...]) -> Results:
    """Copies the results that have the memory of an argument or of another result."""
    known = [argument for argument in arguments if isinstance(argument, Tensor)]
    found: list[Tensor | None] = []
    for result in results:
        if result is None:
            found.append(None)
        else:
            known.append(result.clone() if any(_may_share(result, tensor) for tensor in known) else result)
            found.append(known[-1])
    return tuple(found)


def _may_share(result: Tensor, tensor: Tensor) -> bool:
    """Two tensors may have the same memory if that is unknown."""
    if torch.compiler.is_dynamo_compiling():
        return result.dtype == tensor.dtype
    try:
        return result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a tensor of a transform or a tracer has no storage
        return True


def _call(
    function: Any, arguments: Arguments, reduce: RowReduce | None = None, takes_mask: bool = False
) -> tuple[Any, ...]:
    """Calls a function of the declaration. The tensors have the dtype of sums, and can be broadcast to each other."""
    signature, named, rows, roles = arguments.signature, arguments.named, arguments.rows, arguments.roles
    wide, cast, shapes = arguments.sum_dtype, arguments.cast, arguments.shapes
    after = max(arguments.main.dim(), 1) - rows.first - rows.dims  # the dims after those of a row

    def broadcast(tensor: Tensor | None, role: Any) -> Tensor | None:
        if tensor is None or role == "whole":
            return tensor
        if role in ("element", "block"):
            return rows.flat(tensor if cast is None else tensor.to(cast)).to(wide)
        tensor = tensor if role in ("index", "top_index") else tensor.to(wide)
        if role in ("top", "top_index"):
            return tensor
        if role in ("index", "row"):
            shape = shapes["row"]
            return (tensor if tensor.shape == shape else tensor.reshape(shape)).unsqueeze(rows.first)
        return tensor if role == "number" else tensor.reshape(-1, *[1] * after)

    reduce = reduce or RowReduce(rows.flat(arguments.main), rows.first)
    reduce.dtypes = {name: value.dtype for name, value in named.items() if isinstance(value, Tensor)}
    numbers = {name: named[name] for name in (*signature.function_numbers, *["output_mask"] * takes_mask)}
    found = function(*(broadcast(named[name], roles[name]) for name in signature.function_tensors), reduce, **numbers)
    return found if isinstance(found, tuple) else (found,)
