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
    return bound(op, given, reduce)(*given.tensors)


def bound(op: Op, arguments: Arguments, reduce: RowReduce | None = None) -> Callable[..., Results]:
    """Returns run(*tensors), which computes an op or its gradient in torch's ops. It holds no tensor.

    The tensors have the shapes and dtypes of those in `arguments`. Scores are not modified.
    """
    is_gradient = arguments.signature is not op.signature
    if is_gradient and arguments.values[0] is None and arguments.signature.steps is None:
        return _zeros(arguments)
    function, takes_mask = (op.gradient, op.gradient_takes_mask) if is_gradient else (op.reference, False)
    computed = _bound(function, arguments, reduce, takes_mask)
    finished = _gradients(arguments) if is_gradient else _results(arguments)
    return lambda *tensors: with_new_memory(finished(computed(*tensors), tensors), tensors)


def _results(arguments: Arguments) -> Callable[..., list[Tensor | None]]:
    """Returns finished(results, tensors), which gives the results of a reference their shapes and dtypes."""
    shapes, roles, dtypes = arguments.shapes, arguments.result_roles, arguments.dtypes

    def finished(found: Sequence[Tensor | None], _: Any) -> list[Tensor | None]:
        results: list[Tensor | None] = []  # torch.compile does not trace a call of `list[...]`
        for tensor, role, dtype in zip(found, roles, dtypes, strict=True):
            if role is None or tensor is None:
                results.append(None)
            else:
                has_shape = role == "whole" or tensor.shape == shapes[role]  # then `reshape` would return a view
                results.append((tensor if has_shape else tensor.reshape(shapes[role])).to(dtype))
        return results

    return finished


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
    return bound(op, given, reduce)(*given.tensors)


def _gradients(arguments: Arguments) -> Callable[..., list[Tensor | None]]:
    """Returns finished(gradients, tensors), which gives the gradients of an op their shapes and dtypes."""
    signature, rows, shape = arguments.signature, arguments.rows, arguments.main.shape
    added, needed = _added(arguments), _needed(arguments)
    roles, dtypes, block = arguments.result_roles, arguments.dtypes, arguments.block_shape

    def finished(found: Sequence[Tensor | None], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        addend = None if added is None else tensors[added]
        results: list[Tensor | None] = []
        for result, role, tensor, dtype, need in zip(signature.results, roles, found, dtypes, needed, strict=True):
            if not need or tensor is None:
                results.append(None)
            elif result.role == "whole":
                results.append(tensor.to(dtype))
            elif role == "block" and block is not None:  # the dims of size 1 are those within a block
                summed = tensor.sum([dim for dim in range(rows.first) if block[dim] == 1], keepdim=True)
                results.append(summed.to(dtype).reshape(block))
            elif result.role == "element":
                gradient = tensor.reshape(shape)
                gradient = gradient + addend if addend is not None and not results else gradient
                results.append(gradient.to(dtype))
            else:
                terms = tensor.movedim(rows.first, -1)
                summed = terms.flatten(0, -2).sum(0) if terms.dim() > 1 else terms
                results.append(summed.reshape(rows.per_column(shape)))
        return results

    return finished


def _zeros(arguments: Arguments) -> Callable[..., Results]:
    """Returns run(*tensors) for a gradient without the gradient of the first result: zeros, and the added gradient."""
    signature, added, needed = arguments.signature, _added(arguments), _needed(arguments)
    shapes, roles, dtypes = arguments.shapes | {None: ()}, arguments.result_roles, arguments.dtypes
    main = signature.tensors.index(signature.main)

    def run(*tensors: Any) -> Results:
        zeros = [tensors[main].new_zeros(shapes[role], dtype=d) for role, d in zip(roles, dtypes, strict=True)]
        first = None if added is None else tensors[added].clone()
        return tuple(z if need else None for z, need in zip((first, *zeros[1:]), needed, strict=True))

    return run


def _added(arguments: Arguments) -> int | None:
    """Returns which tensor is added to the first gradient, see `RowKernel.added`, or None."""
    signature = arguments.signature
    name = None if signature.kernel is None else signature.kernel.added
    addend = None if name is None else arguments.named.get(name)
    if name is None or addend is None or addend.shape != arguments.main.shape:
        return None
    return signature.tensors.index(signature.names.index(name))


def _needed(arguments: Arguments) -> list[bool]:
    return [not arguments.lacks(index) for index in range(len(arguments.signature.results))]


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


def _call(function: Any, arguments: Arguments, takes_mask: bool = False) -> tuple[Any, ...]:
    """Calls a function of the declaration, see `_bound`."""
    return _bound(function, arguments, None, takes_mask)(*arguments.tensors)


def _bound(
    function: Any, arguments: Arguments, reduce: RowReduce | None, takes_mask: bool = False
) -> Callable[..., tuple[Any, ...]]:
    """Returns run(*tensors), which calls a function of the declaration.

    The function gets the tensors in the dtype of sums. They can be broadcast to each other.
    """
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

    reduction = reduce or RowReduce(rows.flat(arguments.main), rows.first)
    reduction.dtypes = {name: value.dtype for name, value in named.items() if isinstance(value, Tensor)}
    numbers = {name: named[name] for name in (*signature.function_numbers, *["output_mask"] * takes_mask)}
    names = [signature.names[index] for index in signature.tensors]
    given = [(names.index(name), roles[name]) for name in signature.function_tensors]

    def run(*tensors: Any) -> tuple[Any, ...]:
        found = function(*(broadcast(tensors[index], role) for index, role in given), reduction, **numbers)
        return found if isinstance(found, tuple) else (found,)

    return run
