"""The public functions softmax and log_softmax. They follow torch's definitions."""

from __future__ import annotations

from typing import Any, Literal

import torch

from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX
from tridal.ops import check_choice
from tridal.pytorch import apply, op_function


@op_function(SOFTMAX)
def softmax(
    call: Any,
    input: torch.Tensor,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    masked_rows: Literal["nan", "zero"] = "nan",
    stream: Any = None,
) -> torch.Tensor:
    """exp(input) / sum(exp(input)) along `dim`, as torch.softmax defines it.

    Args:
        input: a dense tensor of any shape and strides.
        dim: the dim that sums to one. A negative dim counts from the last.
        dtype: the dtype to which the input is cast first. Required for integer and bool input.
        scale: a number that multiplies the input first.
        mask: broadcast to the input. A floating-point mask is added. A boolean mask excludes elements where it is
            False.
        causal: row i of the last two dims sees columns 0 to i only, as in scaled_dot_product_attention.
        masked_rows: the result of a row in which every element is -inf: "nan", as in torch, or "zero".
        stream: a stream of the input's device, as torch's stream object or as a raw handle. As for any torch op, the
            caller orders it after the work that produced the input. By default, the device's current stream.

    Returns:
        A contiguous tensor of the input's shape, in `dtype` or the input's dtype; under autocast in float32, where
        torch.softmax is. Sums are float32 (float64 for float64). Rows that contain NaN or +inf, or only -inf, give NaN.

    Raises:
        TypeError, ValueError, DTypeError, DimensionError, ShapeError, TensorDeviceError, LayoutError, StreamError: an
            argument is wrong.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".

    Example:
        >>> scores = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]])
        >>> tridal.softmax(scores)
        tensor([[0.0900, 0.2447, 0.6652],
                [0.2119, 0.2119, 0.5761]])
        >>> tridal.softmax(scores, mask=torch.tensor([True, True, False]))
        tensor([[0.2689, 0.7311, 0.0000],
                [0.5000, 0.5000, 0.0000]])
    """
    if scale is None and mask is None and causal is False and masked_rows == "nan":
        return apply(SOFTMAX, call, (input,), dim, dtype)  # type: ignore[no-any-return]
    check_choice(SOFTMAX.name, "masked_rows", masked_rows, ("nan", "zero"))
    modification = (mask, 1.0 if scale is None else scale, causal, masked_rows == "zero")
    return apply(SOFTMAX, call, (input,), dim, dtype, (), modification)  # type: ignore[no-any-return]


@op_function(LOG_SOFTMAX)
def log_softmax(
    call: Any, input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, stream: Any = None
) -> torch.Tensor:
    """log(softmax(input)) along `dim`, without the intermediate softmax. The arguments are those of `softmax`.

    Example:
        >>> tridal.log_softmax(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-2.4076, -1.4076, -0.4076])
    """
    return apply(LOG_SOFTMAX, call, (input,), dim, dtype)  # type: ignore[no-any-return]
