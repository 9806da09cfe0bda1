"""The public function gated_rms_norm, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from tridal.library.gated_norm.gated_rms_norm import ACTIVATIONS, CASTINGS, GATED_RMS_NORM
from tridal.library.norms.checks import check_sizes, traced_sizes
from tridal.ops import Arguments, accumulator, check_bool, check_choice, check_number, check_tensor, compute
from tridal.pytorch import check_arguments, op_function, torch_computes

Tensor = torch.Tensor


@op_function(GATED_RMS_NORM, sizes="normalized_shape")
def gated_rms_norm(
    call: Any, input: Tensor, gate: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None, *, activation: Literal["silu", "sigmoid"] = "silu", gate_first: bool = False,
    casting: Literal["llama"] | None = None, stream: Any = None,
) -> Tensor:  # fmt: skip
    """rms_norm(input) * weight * activation(gate) over the last dims.

    The gated norm of Mamba-2 (`gate_first=True`) and of gated delta networks, such as those of Qwen3-Next.

    Args:
        input: a tensor whose last sizes are `normalized_shape`, with any strides.
        gate: a tensor of the input's shape. It may have another floating-point dtype.
        normalized_shape: the sizes of the dims that are normalized together.
        weight: a tensor of this shape, which may be float32 if the input is 16-bit.
        eps: by default, the eps of float32; for float64 input that of float64.
        activation: the activation of the gate, "silu" or "sigmoid".
        gate_first: whether to apply the gate before the norm: rms_norm(input * activation(gate)) * weight.
        casting: None computes in float32 (float64 for float64) and rounds once, to the dtype of the input. "llama"
            computes rms_norm(..., casting="llama") * activation(gate): it rounds the normalized input to the dtype of
            the input, and its product with the weight to the promoted dtype. The product with the activation is rounded
            to the dtype of the input. With `gate_first`, the product with the weight is the result, in the promoted
            dtype.
        stream: see `tridal.softmax`.

    Returns:
        A contiguous tensor in the dtype that `casting` determines.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> x, gate = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, -1.0]])
        >>> tridal.gated_rms_norm(x, gate, (2,))
        tensor([[ 0.6203, -0.3043]])
        >>> tridal.gated_rms_norm(x, gate, (2,), activation="sigmoid")
        tensor([[0.6203, 0.3043]])
    """
    op = GATED_RMS_NORM.name
    check_choice(op, "activation", activation, ACTIVATIONS)
    check_bool(op, "gate_first", gate_first)
    check_choice(op, "casting", casting, CASTINGS)
    if eps is not None:
        check_number(op, "eps", eps)
    normalized_shape = traced_sizes(normalized_shape)
    check_sizes(op, input, normalized_shape)
    check_tensor(op, "gate", gate)
    eps = torch.finfo(accumulator(input, gate)).eps if eps is None else float(eps)
    arguments = (input, gate, weight, len(normalized_shape), eps, activation, gate_first, casting or "")
    check_arguments(Arguments(GATED_RMS_NORM.signature, arguments))
    if torch_computes(op, input, gate, weight):
        return compute(GATED_RMS_NORM, *arguments)[0]  # type: ignore[return-value]
    return call(*arguments, checked=True)  # type: ignore[no-any-return]
