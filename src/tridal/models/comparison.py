"""Compares two callables, a module's own and tridal's: results, gradients, rounding, both modes and dtypes.

A comparison calls copies of a module with random tensors, in training and in evaluation mode. Norms, gated MLPs,
experts, activations, rotary embeddings and losses are compared by the functions of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tridal.models.isolation import plain_mode
from tridal.models.reads import OF_MODULES, Different, Reads, Recorder, fixed
from tridal.models.replacements import base_of, origin

Tensor = torch.Tensor
Form = TypeVar("Form")
Pair = tuple[Tensor, Tensor]
"""A tensor that tridal computed, and that of the other callable."""
NARROW = (torch.bfloat16, torch.float16)
CASTINGS = ("transformers", "")
"""The orders of rounding of gated MLPs and rotary embeddings."""
FLIPS = 0.02
"""The share of 16-bit elements that may differ by a rounding. Another order of rounding changes more than a tenth."""
TOLERANCE = 1e-6
"""The largest `error` of the same function in float32 and float64."""

_found: dict[Any, tuple[Reads | str, Any]] = {}


def find(kind: str, compare: Callable[..., Form | str], module: torch.nn.Module, device: torch.device) -> Form | str:
    """Returns the form that `compare` finds with what the module reads, or why the module cannot be replaced.

    Results are remembered for modules with the same classes, methods, attributes and shapes. `kind` names the form in
    the reason.
    """
    children = tuple((name, _signature(child)) for name, child in module._modules.items() if child is not None)
    key = compare, device.type, _signature(module), children
    reads, found = _found.get(key, ("", None))
    if key not in _found or (isinstance(reads, Reads) and reads.of(module) != reads):
        recorder = Recorder()
        with plain_mode(device):
            found = attempt(kind, compare, recorder, module, device)
        reads = recorder.reads()
        if isinstance(reads, str) and not (isinstance(found, str) and not found.startswith(UNSUPPORTED)):
            found = reads
        _found[key] = reads, found
    return found if isinstance(found, str) else replace(found, reads=reads.of(module))  # type: ignore


UNSUPPORTED = "this form of "


def attempt(kind: str, compare: Callable[..., Form | str], *arguments: Any) -> Form | str:
    """Returns the result of a comparison. The compared code may raise any exception for inputs that it does not expect.

    `kind` names the form in the reason.
    """
    try:
        return compare(*arguments)
    except Different as reason:
        return str(reason)
    except Exception as error:
        raised = f"the comparison raised {type(error).__name__}: {error}"
        return f"{UNSUPPORTED}{kind} is not supported: {raised}".split("\n")[0]


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


def with_gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor],
    like: Sequence[Tensor] = (),
    allow_unused: bool = False,
) -> list[Any]:
    """Returns outputs and the gradients of the inputs, for random gradients of the outputs.

    Raises:
        TypeError: the outputs have not the shapes and dtypes of `like`.
    """
    outputs = [outputs] if isinstance(outputs, Tensor) else [*outputs]
    for y, expected in zip(outputs, like, strict=False):
        if y.shape != expected.shape or y.dtype is not expected.dtype:
            wanted = f"for {expected.dtype} of shape {list(expected.shape)}"
            raise TypeError(f"it returned {y.dtype} of shape {list(y.shape)} {wanted}")
    generator = torch.Generator("cpu").manual_seed(1)
    given = [torch.randn(y.shape, generator=generator, device="cpu").to(y) for y in outputs]
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, inputs, given, allow_unused=allow_unused)]


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


def error(found: Tensor | None, expected: Tensor | None, row_dims: int = 0) -> float:
    """Returns the largest difference of two tensors, relative to the largest element of its row; inf for NaN.

    The last `row_dims` dims are a row. By default, the difference of each element is relative to 1 + |expected|.
    """
    if found is None or expected is None or found.shape != expected.shape:
        return 0.0 if found is expected else math.inf
    a, b = (tensor.detach().cpu().double() for tensor in (found, expected))
    scale = b.abs().amax(tuple(range(-row_dims, 0)), keepdim=True) if row_dims else 1 + b.abs()
    largest = float(((a - b).abs() / scale).max())
    return math.inf if math.isnan(largest) else largest


def flips(found: Tensor, expected: Tensor) -> float:
    """Returns the share of elements that differ. Small ones do not count: torch's gelu has no exact digits there."""
    return float((found != expected)[expected.abs() > 1e-3].double().mean())


def nearest(what: str, errors: Mapping[Form, Sequence[float]], tolerance: float = TOLERANCE, unit: str = "") -> Form:
    """Returns the form whose first error, that of the result, is the smallest.

    Raises:
        Different: one of its errors is larger than the tolerance.
    """
    form = min(errors, key=lambda form: errors[form][0])
    largest = max(errors[form])
    if not largest <= tolerance:
        raise Different(f"it differs from the nearest {what}, {form}, by {largest:.1e}{unit}")
    return form


def find_casting(outputs: Callable[[str, torch.dtype], Iterable[Pair]]) -> str | None:
    """Returns the casting of `CASTINGS` with which tridal rounds 16-bit tensors in the same order, or None."""
    for casting in CASTINGS:
        if all(flips(*pair) <= FLIPS for dtype in NARROW for pair in outputs(casting, dtype)):
            return casting
    return None
