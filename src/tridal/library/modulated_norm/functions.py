"""The public functions modulated_layer_norm and modulated_rms_norm, and the checks of their arguments."""

# mypy: disable-error-code=no-any-return
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from tridal.errors import ShapeError
from tridal.library.modulated_norm.gated_residual import GATED_MODULATED_LAYER_NORM, GATED_MODULATED_RMS_NORM
from tridal.library.modulated_norm.modulated_norm import MODULATED_LAYER_NORM, MODULATED_RMS_NORM
from tridal.library.norms.checks import check_sizes, traced_sizes
from tridal.ops import (
    Arguments,
    Op,
    accumulator,
    check_choice,
    check_number,
    check_tensor,
    compute,
    is_block_shape,
    wrong,
)
from tridal.pytorch import check_arguments, op_function, torch_computes

Tensor = torch.Tensor
Casting = Literal["llama"] | None
_NAMES = {"scale": "scaling"}  # `scale` is a number of other ops


@overload
def modulated_layer_norm(
    input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *, shift: Tensor | None = None, residual: None = None,
    gate: None = None, casting: Casting = None, stream: Any = None,
) -> Tensor: ...  # fmt: skip
@overload
def modulated_layer_norm(
    input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *, shift: Tensor | None = None, residual: Tensor,
    gate: Tensor | None = None, casting: Casting = None, stream: Any = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@op_function(
    MODULATED_LAYER_NORM, sizes="normalized_shape", names=_NAMES, variants={"gate": GATED_MODULATED_LAYER_NORM}
)
def modulated_layer_norm(
    call: Any, input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *, shift: Tensor | None = None, residual: Tensor | None = None,
    gate: Tensor | None = None, casting: Casting = None, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """layer_norm(input) * (1 + scale) + shift over the last dims, the adaptive LayerNorm (adaLN) of diffusion models.

    With a residual, the norm is that of residual + gate * input, or of residual + input without a gate.

    Args:
        input: a tensor whose last sizes are `normalized_shape`, with any strides, such as [batch, tokens, channels].
        scale: a tensor of the input's shape, or with sizes of one before the normalized dims: [batch, 1, channels] has
            a scale per batch. It may have another floating-point dtype.
        normalized_shape: the sizes of the dims that are normalized together.
        weight, bias: tensors of this shape. Most models have none.
        eps: added to the variance.
        shift: a tensor like the scale. Both may have different shapes.
        residual: a tensor of the input's shape. The sum is rounded to the promoted dtype and normalized.
        gate: a tensor like the scale, by which the input is multiplied before the residual is added.
        casting: None rounds once. "llama" rounds each step, as a 16-bit model that computes them by torch's ops: 1 +
            scale to the dtype of the scale; the norm, the product and gate * input to that of the input (plus
            residual).
        stream: see `tridal.softmax`.

    Returns:
        A contiguous tensor in the dtype of the input (plus residual), rounded once from float32 (float64 for float64);
        with a residual, a tuple of this tensor and the sum.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> x = torch.tensor([[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]])
        >>> tridal.modulated_layer_norm(x, torch.ones(1, 1, 3), (3,), shift=torch.ones(1, 1, 3))
        tensor([[[-1.4495,  1.0000,  3.4495],
                 [ 3.4495,  1.0000, -1.4495]]])
        >>> y, total = tridal.modulated_layer_norm(x, 0 * x, (3,), residual=x, gate=torch.full((1, 1, 3), 2.0))
        >>> total
        tensor([[[3., 6., 9.],
                 [9., 6., 3.]]])
    """
    check_number(MODULATED_LAYER_NORM.name, "eps", eps)
    op = MODULATED_LAYER_NORM if gate is None else GATED_MODULATED_LAYER_NORM
    modulation = {"gate": gate, "scale": scale, "shift": shift}
    return _compute(call, op, (input, residual), modulation, normalized_shape, eps, casting, weight, bias)


@overload
def modulated_rms_norm(
    input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None, *, shift: Tensor | None = None, residual: None = None, gate: None = None,
    casting: Casting = None, stream: Any = None,
) -> Tensor: ...  # fmt: skip
@overload
def modulated_rms_norm(
    input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None, *, shift: Tensor | None = None, residual: Tensor, gate: Tensor | None = None,
    casting: Casting = None, stream: Any = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@op_function(MODULATED_RMS_NORM, sizes="normalized_shape", names=_NAMES, variants={"gate": GATED_MODULATED_RMS_NORM})
def modulated_rms_norm(
    call: Any, input: Tensor, scale: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None, *, shift: Tensor | None = None, residual: Tensor | None = None,
    gate: Tensor | None = None, casting: Casting = None, stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """rms_norm(input) * (1 + scale) + shift over the last dims.

    With a residual, the norm is that of residual + gate * input, or of residual + input without a gate.

    Args:
        input, scale, normalized_shape, weight, shift, residual, gate, stream: see `modulated_layer_norm`.
        eps: by default, the eps of float32; for float64 input that of float64.
        casting: see `modulated_layer_norm`. "llama" rounds the norm before the weight multiplies it, too.

    Returns:
        A contiguous tensor in the dtype of the input (plus residual), rounded once from float32 (float64 for float64);
        with a residual, a tuple of this tensor and the sum.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError, NoBackendError: see
            `modulated_layer_norm`.

    Example:
        >>> tridal.modulated_rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(1, 2), (2,))
        tensor([[1.6971, 2.2627]])
    """
    if eps is not None:
        check_number(MODULATED_RMS_NORM.name, "eps", eps)
    op = MODULATED_RMS_NORM if gate is None else GATED_MODULATED_RMS_NORM
    modulation = {"gate": gate, "scale": scale, "shift": shift}
    return _compute(call, op, (input, residual), modulation, normalized_shape, eps, casting, weight)


def _compute(
    call: Any, op: Op, tensors: tuple[Tensor, Tensor | None], modulation: dict[str, Tensor | None],
    normalized_shape: Sequence[int], eps: float | None, casting: Casting, *columns: Tensor | None,
) -> Any:  # fmt: skip
    """Computes a modulated norm of an input and a residual. `modulation` are gate, scale and shift by name."""
    (input, residual), name = tensors, op.name.removeprefix("gated_")
    if modulation["gate"] is None:
        del modulation["gate"]
    elif residual is None:
        raise TypeError(wrong(name, "residual", "be a torch.Tensor, because there is a gate", None))
    normalized_shape = traced_sizes(normalized_shape)
    check_sizes(name, input, normalized_shape)
    check_choice(name, "casting", casting, (None, "llama"))
    dims = len(normalized_shape)
    for other, tensor in modulation.items():
        if tensor is None and other == "shift":
            continue
        check_tensor(name, other, tensor, optional=other == "shift")
        assert tensor is not None
        if not _can_expand(tensor.shape, input.shape, dims):
            expected = f"have the shape {tuple(input.shape)} of input, in which sizes before the last {dims} may be 1"
            raise ShapeError(wrong(name, other, expected, tuple(tensor.shape)))
    given = (*tensors, *modulation.values(), *columns)
    expanded = functools.partial(_expanded, dims, len(modulation))
    found = expanded(*given)
    if eps is None:
        eps = torch.finfo(accumulator(*tensors, *modulation.values())).eps
    arguments = (*found, dims, float(eps), casting or "")
    check_arguments(Arguments(op.signature, arguments))
    results = 1 if residual is None else 2
    if torch_computes(op.name, *found):
        computed = compute(op, *arguments)[:results]
        return computed[0] if results == 1 else computed
    views = None if all(new is old for new, old in zip(found, given, strict=True)) else expanded
    return call(*arguments, results=results, views=views, checked=True)


def _can_expand(shape: torch.Size, to: torch.Size, dims: int) -> bool:
    """Whether a shape equals another one, except that its sizes before the last `dims` may be one."""
    if len(shape) != len(to) or shape[len(to) - dims :] != to[len(to) - dims :]:
        return False
    return all(size in (1, other) for size, other in zip(shape, to, strict=True))


def _expanded(dims: int, modulations: int, *given: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns the tensors of a call, of which gate, scale and shift are expanded. The first two have full shapes.

    Scale and shift get one shape. So do all that have a number per column and block of rows. Others get the shape of
    the input.
    """
    input, modulation = given[0], given[2 : 2 + modulations]
    assert input is not None
    broadcast: Any = torch.broadcast_shapes
    *gates, scale = (tensor.shape for tensor in modulation[:-1] if tensor is not None)
    shift = modulation[-1]
    wanted = [*gates, *[scale if shift is None else broadcast(scale, shift.shape)] * 2]
    blocks = [shape for shape in wanted if is_block_shape(shape, input.shape, dims)]
    block = broadcast(*blocks) if blocks else input.shape
    shapes = [block if is_block_shape(shape, input.shape, dims) else input.shape for shape in wanted]
    expanded = (t if t is None or t.shape == s else t.expand(s) for t, s in zip(modulation, shapes, strict=True))
    return *given[:2], *expanded, *given[2 + modulations :]
