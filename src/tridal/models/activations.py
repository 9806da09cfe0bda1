"""Replaces activations of several launches by a function of torch that computes the same, and softmax by tridal's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tridal.library.softmax import modules as ours
from tridal.models.comparison import error, find, in_both_modes, nearest, with_gradients
from tridal.models.reads import Form, Recorder
from tridal.models.replacements import is_patched, origin

Tensor = torch.Tensor
NAME = re.compile(r"gelu|silu|swish", re.IGNORECASE)
"""A name of a class that may be an activation. The comparison decides whether it is one."""
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.functional.gelu": functional.gelu,
    "torch.nn.functional.gelu, approximate='tanh'": functools.partial(functional.gelu, approximate="tanh"),
    "torch.nn.functional.silu": functional.silu,
}


@dataclass(frozen=True)
class ActivationForm(Form):
    """The function of torch that an activation computes, as a name in `FUNCTIONS`."""

    function: str | None
    """None if the class calls one function of torch, so that there is nothing to replace."""

    def compute(self, module: Any, x: Tensor) -> Tensor | None:
        """The function of torch computes floating-point tensors."""
        return FUNCTIONS[self.function](x) if self.function is not None and x.is_floating_point() else None

    def __str__(self) -> str:
        return str(self.function)


def may_be_activation(module: torch.nn.Module) -> bool:
    """Whether a class has the name of an activation. An activation of torch calls one function of torch already."""
    return bool(NAME.search(type(module).__name__)) and not type(module).__module__.startswith("torch.")


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
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class SoftmaxForm(Form):
    """The module of tridal.nn whose forward computes a module of torch, by the name that both have."""

    name: str
    compiler_is_faster = False

    def compute(self, module: Any, x: Tensor) -> Tensor | None:
        """The forward of tridal's module computes, while torch's has not been changed."""
        return None if is_patched(module) else getattr(ours, self.name).forward(module, x)

    def __str__(self) -> str:
        return "tridal.softmax" if self.name == "Softmax" else "tridal.log_softmax"


def is_softmax(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch that `SoftmaxForm` could replace."""
    return isinstance(module, (torch.nn.Softmax, torch.nn.LogSoftmax))


def find_softmax(module: torch.nn.Module) -> SoftmaxForm | str:
    """Finds the form of a module of torch, or the reason why there is none."""
    name = "Softmax" if isinstance(module, torch.nn.Softmax) else "LogSoftmax"
    if origin(type(module).forward) != "torch.nn.modules.activation.forward":
        return f"it has its own forward, which is not that of torch.nn.{name}"
    return SoftmaxForm(name)
