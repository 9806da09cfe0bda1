"""The public functions swiglu and geglu, and the checks of their arguments."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import torch

from tridal.errors import ShapeError
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.ops import Op, check_choice, check_floating, check_number, check_tensor, wrong
from tridal.pytorch import apply, op_function, row_function

Tensor = torch.Tensor
Casting = Literal["transformers"] | None


row_function(SWIGLU)
row_function(GEGLU)


@op_function(SWIGLU, last="up is not None")
def swiglu(
    call: Any, input: Tensor, up: Tensor | None = None, *, casting: Casting = None, limit: float | None = None,
    stream: Any = None,
) -> Tensor:  # fmt: skip
    """silu(input) * up.

    Args:
        input: the gate, with any shape and strides. Without `up`, its last dim has two halves: the gate, then `up`.
        up: a tensor of the input's shape.
        casting: None computes in float32 (float64 for float64) and rounds once. "transformers" also rounds silu(input)
            to the dtype of the input before it is multiplied, as two operations of torch do.
        limit: a positive number, which clamps the gate to at most `limit`, and up to between -limit and limit.
        stream: see `tridal.softmax`.

    Returns:
        A contiguous tensor in the promoted dtype, of the input's shape. Without `up`, its last dim is half as long.
        The forward saves only the arguments, and the backward recomputes the activation.

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
    if limit is not None:
        check_number(SWIGLU.name, "limit", limit, "be None or a positive number", lambda limit: 0 < limit < math.inf)
    return _compute(call, SWIGLU, input, up, casting, limit)


@op_function(GEGLU, last="up is not None")
def geglu(
    call: Any, input: Tensor, up: Tensor | None = None, *, approximate: Literal["none", "tanh"] = "none",
    casting: Casting = None, stream: Any = None,
) -> Tensor:  # fmt: skip
    """gelu(input) * up, with `approximate` as in `torch.nn.functional.gelu` and the other arguments of `swiglu`.

    Example:
        >>> gate, up = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 2.0])
        >>> tridal.geglu(gate, up, approximate="tanh")
        tensor([ 1.6824, -0.3176])
    """
    check_choice(GEGLU.name, "approximate", approximate, ("none", "tanh"))
    return _compute(call, GEGLU, input, up, casting, approximate)


def _compute(call: Any, op: Op, input: Any, up: Any, casting: Any, *numbers: Any) -> Tensor:
    """Checks the arguments and computes an op. Its rows are along dim -2 without `up`."""
    name = op.name
    for argument, tensor in (("input", input), ("up", up)):
        if tensor is not None or argument == "input":
            check_tensor(name, argument, tensor, argument == "up")
            check_floating(name, argument, tensor)
    check_choice(name, "casting", casting, (None, "transformers"))
    numbers = (*numbers, casting or "")
    if up is None:
        if not input.dim() or input.shape[-1] % 2:
            expected, hint = "have a last dim of even size without up", "its halves are the gate and up"
            raise ShapeError(wrong(name, "input", expected, f"the shape {tuple(input.shape)}", hint))
        return apply(op, functools.partial(call, views=_halves), _halves(input, up), -2, None, numbers)  # type: ignore[no-any-return]
    return apply(op, call, (input, up), -1, None, numbers)  # type: ignore[no-any-return]


def _halves(input: Tensor, up: None) -> tuple[Tensor, None]:
    """Returns the view of the gate and `up` as rows of two elements."""
    return torch.unflatten(input, -1, (2, input.shape[-1] // 2)), None
