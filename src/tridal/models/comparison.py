"""Compares what a module computes with functions of tridal and torch, and remembers the results.

A comparison calls copies of the module with random tensors, in training and in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tridal.models.isolation import plain_mode
from tridal.models.reads import OF_MODULES, Different, Reads, Recorder, fixed
from tridal.models.replacements import base_of, origin
from tridal.models.report import unsupported

Tensor = torch.Tensor
Form = TypeVar("Form")
NARROW = (torch.bfloat16, torch.float16)
FLIPS = 0.02
"""The share of 16-bit elements that may differ by a rounding. Another order of rounding changes more than a tenth."""
TOLERANCE = 1e-6
"""The largest `difference` from a module that computes the same."""

_results: dict[Any, tuple[Reads | str, Any]] = {}


def find(kind: str, compare: Callable[..., Form | str], module: torch.nn.Module, device: torch.device) -> Form | str:
    """Returns the form that `compare` finds with what the module reads, or why the module cannot be replaced.

    `kind` names the form in the reason.

    Results are remembered for modules with the same classes, methods, attributes and shapes.
    """
    children = tuple((name, _signature(child)) for name, child in module._modules.items() if child is not None)
    key = compare, device.type, _signature(module), children
    reads, result = _results.get(key, ("", None))
    if key not in _results or (isinstance(reads, Reads) and reads.changed(module)):
        with plain_mode(device):
            reads, result = _results[key] = _compare(kind, compare, module, device)
    return result if isinstance(result, str) else replace(result, reads=result.reads.of(module))


def _compare(
    kind: str, compare: Callable[..., Any], module: torch.nn.Module, device: torch.device
) -> tuple[Reads | str, Any]:
    recorder, raised = Recorder(), False
    try:
        result = compare(recorder, module, device)
    except Different as reason:
        result = str(reason)
    except Exception as error:  # the module's own code may raise any exception for inputs that it does not expect
        result, raised = unsupported(kind, error), True
    reads = recorder.reads()
    if isinstance(reads, str):
        return reads, result if isinstance(result, str) and not raised else reads
    return reads, result if isinstance(result, str) else replace(result, reads=reads)


def _signature(module: torch.nn.Module) -> Any:
    """Returns a key that is the same for modules that compute the same function."""
    base, own = base_of(module), module.__dict__
    forward = origin(own["forward"]) if "forward" in own else base.forward
    names = (name for name in own if name not in OF_MODULES and not name.startswith("_tridal_"))
    shapes = tuple((name, t if t is None else t.shape) for name, t in module._parameters.items())
    return base, forward, shapes, tuple((name, _identity(own[name], module)) for name in names)


def _identity(value: Any, owner: Any) -> Any:
    try:
        return fixed(value, owner)
    except TypeError as error:  # a module that reads it is not replaced
        return str(error)


def in_both_modes(recorder: Recorder, compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    """Returns what `compute` returns for the last copies of a recorder.

    Raises:
        Different: they compute something else in training than in evaluation.
    """
    results = []
    for training in (True, False):
        recorder.set_mode(training)
        results.append(compute())
    if not all(map(_is_same, *results)):
        raise Different("it computes something else in training than in evaluation")
    return results[1]


def _is_same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype is not b.dtype:
        return a is b
    few = 8 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=few, atol=few * float(b.detach().nan_to_num(0, 0, 0).abs().max()), equal_nan=True)


def difference(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference of two tensors, relative to 1 + |expected|; inf for NaN."""
    error = float(((found - expected).abs() / (1 + expected.abs())).max())
    return error if error == error else float("inf")
