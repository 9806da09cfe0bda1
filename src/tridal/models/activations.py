"""Replaces an activation that takes several launches by torch's function, if both compute the same."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tridal.models.comparison import TOLERANCE, difference, find, in_both_modes
from tridal.models.reads import NOTHING, Reads, Recorder
from tridal.models.replacements import torch_computes

Tensor = torch.Tensor
NAME = re.compile(r"gelu|silu|swish", re.IGNORECASE)
"""A name of a class that may be an activation. The comparison decides whether it is one."""
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.functional.gelu": functional.gelu,
    "torch.nn.functional.gelu, approximate='tanh'": functools.partial(functional.gelu, approximate="tanh"),
    "torch.nn.functional.silu": functional.silu,
}
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ActivationForm:
    """The function of torch that an activation computes, as a name in `FUNCTIONS`."""

    function: str | None
    """None if the class calls one function of torch, so that there is nothing to replace."""
    reads: Reads = NOTHING

    def compute(self, module: Any, x: Any) -> Tensor | None:
        """Returns the module's output, or None if the module computes this input itself.

        A compiler fuses the operations of the module's class, so compiled functions get them.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or torch.compiler.is_dynamo_compiling():
            return None
        if self.function is None or torch_computes(x.device) or not self.reads.hold(module):
            return None
        return FUNCTIONS[self.function](x)

    def __str__(self) -> str:
        return str(self.function)


def find_form(module: torch.nn.Module) -> ActivationForm | str | None:
    """Returns the function of torch that a module computes, or why there is none.

    Returns None if the module is no candidate: it has parameters or modules inside, or it calls one function of torch.
    """
    if module._modules or module._parameters:
        return None
    found = find("activation", _compare, module, _CPU)
    return None if isinstance(found, ActivationForm) and found.function is None else found


def _compare(recorder: Recorder, module: Any, device: torch.device) -> ActivationForm | str:
    forward, x, counter = recorder.copy(module), _numbers(torch.float32), _Counter()
    recorder.set_mode(training=False)
    with counter, torch.no_grad():
        forward(x)
    if counter.count == 1:
        return ActivationForm(None)
    results = [
        torch.stack(in_both_modes(recorder, functools.partial(_computed, forward, dtype))).double()  # type: ignore[arg-type]
        for dtype in (torch.float64, torch.float32)
    ]
    exact = {name: torch.stack(_computed(function, torch.float64)) for name, function in FUNCTIONS.items()}
    errors = {name: max(difference(found, expected) for found in results) for name, expected in exact.items()}
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TOLERANCE:
        return f"it differs from the nearest function, {name}, by {errors[name]:.1e}"
    return ActivationForm(name)


def _numbers(dtype: torch.dtype) -> Tensor:
    """Returns an input with small and large numbers of both signs, where activations differ from each other."""
    magnitudes = torch.logspace(-4, 2, 1000, dtype=torch.float32, device="cpu")
    dense = torch.linspace(-8, 8, 1001, dtype=torch.float32, device="cpu")
    return torch.cat((-magnitudes, dense, magnitudes)).to(dtype)


def _computed(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Returns the results and the gradients of a function."""
    x = _numbers(dtype).requires_grad_()
    y = function(x)
    if y.shape != x.shape or y.dtype is not dtype:
        raise TypeError(f"it returned {y.dtype} of shape {list(y.shape)} for {dtype} of shape {list(x.shape)}")
    return [y.detach(), *torch.autograd.grad(y.sum(), x)]


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
