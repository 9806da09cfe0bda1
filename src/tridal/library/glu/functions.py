"""The public functions swiglu and geglu, and the checks of their arguments."""

from __future__ import annotations

from typing import Any, Literal

import torch

from tridal.errors import ShapeError
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.ops import check_choice, check_floating, check_tensor, wrong
from tridal.pytorch import row_function

Tensor = torch.Tensor
Casting = Literal["transformers"] | None


def swiglu(input: Tensor, up: Tensor | None = None, *, casting: Casting = None, stream: Any = None) -> Tensor:
    """silu(input) * up.

    Args:
        input: the gate, with any shape and strides. Without `up`, its last dim has two halves: the gate, then `up`.
        up: a tensor of the input's shape.
        casting: None computes in float32 (float64 for float64) and rounds once. "transformers" also rounds silu(input)
            to the dtype of the input before it is multiplied, as two operations of torch do.
        stream: see `tridal.softmax`.

    Returns:
        A contiguous tensor in the promoted dtype, of the input's shape. Without `up`, its last dim is half as long.
        The backward computes the activation again, and saves only the arguments.

    Raises:
        TypeError, ValueError, DTypeError, ShapeError, TensorDeviceError, LayoutError, StreamError: an argument is
            wrong.
        NoBackendError: no backend serves the tensors and the setting `fallback` is "error".

    Example:
        >>> gate, up = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 2.0])
        >>> tridal.swiglu(gate, up)
        tensor([ 1.4621, -0.5379])
        >>> tridal.swiglu(torch.cat([gate, up]))
        tensor([ 1.4621, -0.5379])
    """
    return _compute(_swiglu, input, up, casting, stream)


def geglu(
    input: Tensor, up: Tensor | None = None, *, approximate: Literal["none", "tanh"] = "none", casting: Casting = None,
    stream: Any = None,
) -> Tensor:  # fmt: skip
    """gelu(input) * up. `approximate` is that of `torch.nn.functional.gelu`, and the others are those of `swiglu`.

    Example:
        >>> gate, up = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 2.0])
        >>> tridal.geglu(gate, up, approximate="tanh")
        tensor([ 1.6824, -0.3176])
    """
    return _compute(_geglu, input, up, casting, stream, approximate=approximate)


def _compute(function: Any, input: Any, up: Any, casting: Any, stream: Any, **numbers: Any) -> Tensor:
    """Checks the arguments and calls the function of an op. Its rows are along dim -2 without `up`."""
    name = function.__name__
    for argument, tensor in (("input", input), ("up", up)):
        if tensor is not None or argument == "input":
            check_tensor(name, argument, tensor, argument == "up")
            check_floating(name, argument, tensor)
    check_choice(name, "casting", casting, (None, "transformers"))
    dim = -1
    if up is None:
        if not input.dim() or input.shape[-1] % 2:
            expected, hint = "have a last dim of even size without up", "its halves are the gate and up"
            raise ShapeError(wrong(name, "input", expected, f"the shape {tuple(input.shape)}", hint))
        input, dim = input.unflatten(-1, (2, input.shape[-1] // 2)), -2
    return function(input, up, dim, stream=stream, casting=casting or "", **numbers)  # type: ignore[no-any-return]


_swiglu, _geglu = row_function(SWIGLU), row_function(GEGLU)
