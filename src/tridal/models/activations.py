"""Replaces an activation that takes several launches by torch's function, if both compute the same."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tridal.models.norm_comparison import plain_mode
from tridal.models.norm_identity import signature
from tridal.models.replacements import torch_computes

Tensor = torch.Tensor
NAME = re.compile(r"gelu|silu|swish", re.IGNORECASE)
"""A name of a class that may be an activation. The comparison decides whether it is one."""
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.functional.gelu": functional.gelu,
    "torch.nn.functional.gelu, approximate='tanh'": functools.partial(functional.gelu, approximate="tanh"),
    "torch.nn.functional.silu": functional.silu,
}
TOLERANCE = 1e-6
"""The largest `difference` from a class that computes the same."""
_CPU = torch.device("cpu")


class Found(NamedTuple):
    """The result of a comparison."""

    function: str | None
    """The name in `FUNCTIONS`."""
    reason: str | None = None
    """Why there is no function."""


_found: dict[Any, Found | None] = {}


@dataclass(frozen=True)
class ActivationForm:
    """The function of torch that an activation computes, as a name in `FUNCTIONS`."""

    function: str

    def compute(self, module: Any, x: Any) -> Tensor | None:
        """Returns the module's output, or None if the module computes this input itself.

        A compiler fuses the operations of the module's class, so compiled functions get them.
        """
        plain = isinstance(x, Tensor) and x.is_floating_point() and not torch.compiler.is_dynamo_compiling()
        return FUNCTIONS[self.function](x) if plain and not torch_computes(x.device) else None


def find_function(module: torch.nn.Module) -> Found | None:
    """Returns the function of torch that a module computes, or why there is none.

    Returns None if the module is no candidate: it has parameters or modules inside, or it calls one function of torch.
    Comparisons are remembered for modules of the same class with the same attributes.
    """
    if module._modules or module._parameters or module._buffers:
        return None
    key = signature(module, _CPU)
    if key not in _found:
        with plain_mode("cpu"):
            _found[key] = _compare(functools.partial(type(module).forward, module))
    return _found[key]


def _compare(forward: Callable[[Tensor], Tensor]) -> Found | None:
    counter, x = _Counter(), _numbers(torch.float32)
    try:
        with counter, torch.no_grad():
            forward(x)
        if counter.count == 1:
            return None
        results = [_computed(forward, dtype) for dtype in (torch.float64, torch.float32)]
    except Exception as error:  # the module's own code may raise any exception for inputs that it does not expect
        return Found(None, f"its forward raised {type(error).__name__} in the comparison: {error}".split("\n")[0])
    exact = {name: _computed(function, torch.float64) for name, function in FUNCTIONS.items()}
    errors = {name: max(difference(found, expected) for found in results) for name, expected in exact.items()}
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TOLERANCE:
        return Found(None, f"it differs from the nearest function, {name}, by {errors[name]:.1e}")
    return Found(name)


def _numbers(dtype: torch.dtype) -> Tensor:
    """Returns an input with small and large numbers of both signs, where activations differ from each other."""
    magnitudes = torch.logspace(-4, 2, 1000, dtype=torch.float32, device="cpu")
    dense = torch.linspace(-8, 8, 1001, dtype=torch.float32, device="cpu")
    return torch.cat((-magnitudes, dense, magnitudes)).to(dtype)


def _computed(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """Returns the results and the gradients of a function, in float64."""
    x = _numbers(dtype).requires_grad_()
    y = function(x)
    if y.shape != x.shape or y.dtype is not dtype:
        raise TypeError(f"it returned {y.dtype} of shape {list(y.shape)} for {dtype} of shape {list(x.shape)}")
    return torch.stack((y, *torch.autograd.grad(y.sum(), x))).detach().double()


def difference(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference of two tensors, relative to 1 + |expected|; inf for NaN."""
    error = float(((found - expected).abs() / (1 + expected.abs())).max())
    return error if error == error else float("inf")


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
