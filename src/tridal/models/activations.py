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

from tridal.models.comparison import error, find, in_both_modes, nearest, with_gradients
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
    found = find("activation", _compare, module, torch.device("cpu"))
    return None if isinstance(found, ActivationForm) and found.function is None else found


def _compare(recorder: Recorder, device: torch.device) -> ActivationForm:
    forward, counter = recorder.copy(), _Counter()
    recorder.set_mode(training=False)
    # Small and large numbers of both signs, where activations differ from each other.
    magnitudes = torch.logspace(-4, 2, 1000, dtype=torch.float32, device=device)
    x = torch.cat((-magnitudes, torch.linspace(-8, 8, 1001, dtype=torch.float32, device=device), magnitudes))
    with counter, torch.no_grad():
        forward(x)
    if counter.count == 1:
        return ActivationForm(None)

    def computed(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        own = x.to(dtype, copy=True).requires_grad_()
        return torch.stack(with_gradients(function(own), [own], [own]))

    found = in_both_modes(recorder, lambda: [computed(forward, dtype) for dtype in (torch.float64, torch.float32)])
    exact = {name: computed(function, torch.float64) for name, function in FUNCTIONS.items()}
    return ActivationForm(nearest("function", {name: [error(y, exact[name]) for y in found] for name in exact}))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
