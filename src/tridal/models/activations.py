"""Replaces an activation that takes several launches by torch's function, if both compute the same."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tridal.models.norm_comparison import plain_mode
from tridal.models.replacements import Replacement, is_traced, torch_computes

Tensor = torch.Tensor
NAME = re.compile(r"gelu|silu|swish", re.IGNORECASE)
"""A name of a class that may be an activation. The comparison decides whether it is one."""
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.functional.gelu": functional.gelu,
    "torch.nn.functional.gelu, approximate='tanh'": functools.partial(functional.gelu, approximate="tanh"),
    "torch.nn.functional.silu": functional.silu,
}
TOLERANCE = 1e-6
"""The largest difference in float32, relative to 1 + |result|."""
_found: dict[Any, str | tuple[str, str] | None] = {}


class Activation(Replacement):
    """The forward of an activation. The form is a name in `FUNCTIONS`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of torch's function. A compiler fuses the operations of the module's class as well."""
        plain = len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and args[0].is_floating_point()
        if self._tridal_form is None or not plain or torch.compiler.is_dynamo_compiling() or is_traced():
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        if torch_computes(args[0].device):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        return FUNCTIONS[self._tridal_form](args[0])


def find_function(module: torch.nn.Module) -> str | tuple[str, str] | None:
    """Returns the name in `FUNCTIONS` of what a module computes, or ("", reason) if torch has no such function.

    Returns None if the module is no candidate: it has parameters or modules inside, or it calls one function of torch.
    Comparisons are remembered for modules of the same class with the same attributes.
    """
    if module._modules or module._parameters or module._buffers:
        return None
    own = {name: value for name, value in module.__dict__.items() if name not in torch.nn.Module().__dict__}
    key = type(module), type(module).forward, repr(sorted(own.items()))
    if key not in _found:
        with plain_mode("cpu"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _found[key] = _compare(functools.partial(type(module).forward, module))
    return _found[key]


def _compare(forward: Callable[[Tensor], Tensor]) -> str | tuple[str, str] | None:
    counter, x = _Counter(), _numbers(torch.float32)
    try:
        with counter, torch.no_grad():
            forward(x)
        if counter.count == 1:
            return None
        results = [_computed(forward, dtype) for dtype in (torch.float64, torch.float32)]
    except Exception as error:  # the module's own code may raise any exception for inputs that it does not expect
        return "", f"its forward raised {type(error).__name__} in the comparison: {error}".split("\n")[0]
    errors = {
        name: max(_difference(found, _computed(function, torch.float64)) for found in results)
        for name, function in FUNCTIONS.items()
    }
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TOLERANCE:
        return "", f"it differs from the nearest function, {name}, by {errors[name]:.1e}"
    return name


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


def _difference(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to 1 + |expected|; inf for NaN."""
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
