"""Compares two callables, a module's own and tridal's: results, gradients, rounding, both modes and dtypes.

A comparison calls copies of a module with random tensors, in training and in evaluation mode. No mode, setting or
random state of the program changes its result. Norms, gated MLPs, experts, activations, rotary embeddings and losses
are compared by the functions of this file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any, TypeVar

import torch

from tridal.devices.settings import use
from tridal.models.reads import Different, Reads, Recorder
from tridal.models.replacements import COMPARING, base_of
from tridal.pytorch.call_records import unrecorded

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
UNSUPPORTED = "this form of "

_found: dict[Any, list[tuple[Reads, Any]]] = {}
"""The results of comparisons, with what the compared modules have read."""


def isolated(function: Callable[..., Form], *arguments: Any) -> Form:
    """Calls a function in a new thread, and returns its result.

    Autocast, grad mode, other modes, transforms, hooks of saved tensors and blocks of `tridal.use` belong to a thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


@contextmanager
def plain_mode(device: torch.device | str) -> Iterator[None]:
    """A context that sets what all threads share to torch's defaults. It also leaves out records and warnings."""
    device, thread = torch.device(device), get_ident()
    others, kinds = ([], {}) if device.type == "cpu" else ([device], {"device_type": device.type})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(others, **kinds))
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed accelerators, too
        if (dtype := torch.get_default_dtype()) is not torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.are_deterministic_algorithms_enabled():
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            torch.use_deterministic_algorithms(False)
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warns)
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(use(fallback="torch"))
        stack.enter_context(unrecorded())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch warns about dtypes that the program may never use
        COMPARING.append(thread)
        stack.callback(COMPARING.remove, thread)
        yield


def find(
    kind: str, compare: Callable[..., Form | str], module: torch.nn.Module, device: torch.device, *arguments: Any
) -> Form | str:
    """Returns the form that `compare` finds with what the module reads, or why the module cannot be replaced.

    Results are remembered for modules of the same class with parameters of the same shapes, which have what the
    compared module has read. `kind` names the form in the reason. `compare` gets the arguments.
    """
    shapes = tuple((name, t if t is None else t.shape) for name, t in module._parameters.items())
    compared = _found.setdefault((compare, device.type, base_of(module), shapes, arguments), [])
    if known := [(own, found) for reads, found in compared if (own := reads.of(module)) == reads]:
        own, found = known[0]
    else:
        recorder = Recorder(module)
        found = attempt(kind, device, compare, recorder, device, *arguments)
        own, reason = recorder.reads()
        if reason is not None and not (isinstance(found, str) and not found.startswith(UNSUPPORTED)):
            found = reason
        compared.append((own, found))
    return found if isinstance(found, str) else replace(found, reads=own)


def attempt(kind: str, device: torch.device, compare: Callable[..., Form | str], *arguments: Any) -> Form | str:
    """Returns the result of a comparison. The compared code may raise any exception for inputs that it does not expect.

    `kind` names the form in the reason.
    """
    try:
        with plain_mode(device):
            return compare(*arguments)
    except Different as reason:
        return str(reason)
    except Exception as error:
        raised = f"the comparison raised {type(error).__name__}: {error}"
        return f"{UNSUPPORTED}{kind} is not supported: {raised}".split("\n")[0]


def with_gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor],
    like: Sequence[Tensor] = (),
    allow_unused: bool = False,
) -> list[Any]:
    """Returns outputs and the gradients of the inputs, for random gradients of the outputs.

    The outputs must have the shapes and dtypes of `like`.
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
    """Returns what `compute` returns for the last copies of a recorder, or raises Different if the modes differ."""
    results = []
    for training in (True, False):
        recorder.set_mode(training)
        results.append(compute())
    if not all(map(_is_same, *results)):
        raise Different("its results differ between training and evaluation")
    return results[1]


def _is_same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype is not b.dtype:
        return a is b
    few = 8 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=few, atol=few * float(b.detach().nan_to_num(0, 0, 0).abs().max()), equal_nan=True)


def error(found: Tensor | None, expected: Tensor | None, row_dims: int | None = None) -> float:
    """Returns the largest difference of two tensors, relative to the largest element of its row; inf for NaN.

    The last `row_dims` dims are a row. By default, the difference of each element is relative to 1 + |expected|.
    """
    if found is None or expected is None or found.shape != expected.shape:
        return 0.0 if found is expected else math.inf
    a, b = (tensor.detach().cpu().double() for tensor in (found, expected))
    scale = 1 + b.abs() if row_dims is None else b.abs().amax(tuple(range(-row_dims, 0)), keepdim=True)
    largest = float(((a - b).abs() / scale).max())
    return math.inf if math.isnan(largest) else largest


def difference(tensors: Iterable[tuple[str, Tensor | None, Tensor | None, int]], tolerance: float) -> str | None:
    """Returns the first difference of tensors: names, those of tridal, the expected ones and the dims of their rows."""
    for name, found, expected, row_dims in tensors:
        largest = error(found, expected, row_dims)
        if not largest <= tolerance or getattr(found, "dtype", None) is not getattr(expected, "dtype", None):
            return f"{name} differs by {largest:.1e} of its largest element"
    return None


def tolerance_of(dtype: torch.dtype) -> float:
    """Returns the error of a few roundings in a dtype, relative to the largest element of a row."""
    return {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 2 * torch.finfo(dtype).eps)


def rounding(found: Tensor, expected: Tensor, tolerance: float = 0.0) -> str | None:
    """Returns how the order of rounding of 16-bit tensors differs, or None.

    Small elements do not count: torch's gelu has no exact digits there. `tolerance` is the largest relative difference
    of elements that are rounded in the same order. It is zero unless the results have more than 16 bits.
    """
    differs = (found - expected).abs() > tolerance * expected.abs() if tolerance else found != expected
    share = float(differs[expected.abs() > 1e-3].double().mean())
    reason = f"the order of rounding differs: {share:.0%} of the elements are rounded to another number"
    return None if share <= FLIPS else reason


def nearest(what: str, errors: Mapping[Form, Sequence[float]], tolerance: float = TOLERANCE, unit: str = "") -> Form:
    """Returns the form with the smallest error of the result, or raises Different if its errors are too large."""
    form = min(errors, key=lambda form: errors[form][0])
    largest = max(errors[form])
    if not largest <= tolerance:
        raise Different(f"it differs from the nearest {what}, {form}, by {largest:.1e}{unit}")
    return form


def find_casting(outputs: Callable[[str, torch.dtype], Iterable[Pair]]) -> str | None:
    """Returns the casting of `CASTINGS` with which tridal rounds 16-bit tensors in the same order, or None."""
    for casting in CASTINGS:
        if all(rounding(*pair) is None for dtype in NARROW for pair in outputs(casting, dtype)):
            return casting
    return None
