"""Logits that a model computes only if something other than its own loss reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class UnreadLogits:
    """The logits of one call of a head. The steps of a softcap are recorded: division, tanh and multiplication.

    Every other use computes the logits, and gives what a tensor gives.
    """

    # torch.compile reads the attributes of an object whose constructor has not run.
    hidden: Any = None
    """The input of the head."""
    _head: Any = None
    _steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    _logits: Any = None

    def __init__(self, hidden: torch.Tensor, head: Any, steps: Any = ()) -> None:
        self.hidden, self._head, self._steps = hidden, head, steps

    def is_read(self) -> bool:
        """Whether the logits have been computed."""
        return self._logits is not None

    def read(self) -> torch.Tensor:
        """Computes the logits, but only once, because a program may change them in place."""
        if self._logits is None:
            logits = self._head(self.hidden)
            for name, arguments in self._steps:
                logits = getattr(logits, name)(*arguments)
            self._logits = logits
        return self._logits  # type: ignore[no-any-return]

    def softcap(self) -> float | None:
        """Returns the softcap of the recorded steps: None if there is none, and 0 if the steps are no softcap."""
        steps = [step for step in self._steps if step[0] != "float"]  # the loss is computed in float32
        if not steps:
            return None
        is_softcap = [name for name, _ in steps] == ["div", "tanh", "mul"] and steps[0][1] == steps[2][1]
        return max(float(steps[0][1][0]), 0.0) if is_softcap else 0.0

    def contiguous(self) -> Any:
        """Returns the logits: those of a linear layer are contiguous."""
        return self.read().contiguous() if self.is_read() else self

    def __getattr__(self, name: str) -> Any:
        if name == "device":
            return self.hidden.device
        if name == "shape":
            return torch.Size((*self.hidden.shape[:-1], self._head.out_features))
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.read(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tanh and len(args) == 1 and not kwargs:
            return args[0].tanh()
        return func(*_read(args), **{name: _read(value) for name, value in (kwargs or {}).items()})


def _read(value: Any) -> Any:
    """Replaces unread logits by the logits, also inside lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)([_read(item) for item in value])
    return value.read() if isinstance(value, UnreadLogits) else value


def _step(name: str) -> Callable[..., Any]:
    def record(self: UnreadLogits, *arguments: Any) -> Any:
        if self.is_read() or not all(type(argument) in (int, float) for argument in arguments):
            return getattr(self.read(), name)(*arguments)
        if arguments == (1,):
            return self  # a scale of the logits is 1 by default
        return UnreadLogits(self.hidden, self._head, (*self._steps, (name, arguments)))

    return record


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self.read(), name)(*map(_read, arguments))


for _name, _names in {
    "div": ("div", "__truediv__"), "mul": ("mul", "__mul__", "__rmul__"), "tanh": ("tanh",), "float": ("float",),
}.items():  # fmt: skip
    for _alias in _names:
        setattr(UnreadLogits, _alias, _step(_name))
for _name in (
    "add", "radd", "sub", "rsub", "rtruediv", "floordiv", "pow", "rpow", "mod", "matmul", "rmatmul", "neg", "abs", "eq",
    "ne", "lt", "le", "gt", "ge", "and", "or", "invert", "getitem", "setitem", "len", "iter", "bool", "contains",
):  # fmt: skip
    setattr(UnreadLogits, f"__{_name}__", _operator(f"__{_name}__"))
UnreadLogits.__hash__ = object.__hash__  # type: ignore[method-assign]
