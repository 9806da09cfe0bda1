"""Finds the norm that a module computes, by comparing results and gradients of random tensors.

A copy of the module with random weights is compared with the references of tridal's norms. Float32 shows the function.
The other dtypes show the order in which the module rounds and multiplies.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from tridal.models.comparison import FLIPS, NARROW, error, find, flips, in_both_modes, nearest, with_gradients
from tridal.models.norm_forms import Casting, Key, NormForm, name_of, parameters_of
from tridal.models.reads import Different, Recorder

Tensor = torch.Tensor
SCALES = (1e-3, 1e-2, 0.3, 1.0, 10.0, 100.0)
"""Magnitudes of the rows of an input. The first is below the square root of usual values of eps."""
ELEMENTS = 2048
"""At least this number of elements is compared, so that a different order of rounding is seen in 16-bit dtypes."""
DTYPES = (
    (torch.float32, torch.float32), (torch.float64, torch.float64),
    *itertools.chain.from_iterable(((d, d), (d, torch.float32), (torch.float32, d)) for d in NARROW),
)  # fmt: skip
"""The dtypes of inputs and weights that are compared."""


def find_form(module: torch.nn.Module) -> NormForm | str:
    """Returns the norm that a module computes, or why there is none. The module is not called, and keeps its tensors.

    It is compared on the device of its parameters, or on the CPU if they have no memory.
    """
    if module._modules:
        return f"it calls the modules {', '.join(module._modules)}, and a norm calls none"
    found = parameters_of(module)
    if any(tensor.dtype not in itertools.chain(*DTYPES) for tensor in found.values()):
        kinds = ", ".join(sorted({f"{type(tensor).__name__} of {tensor.dtype}" for tensor in found.values()}))
        return f"tridal has no norm with parameters of these dtypes: {kinds}"
    if len(found) > 2:
        return f"it has the parameters {', '.join(found)}, and a norm has a weight and a bias"
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if len([p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]) != 1:
        return f"its forward takes ({', '.join(p.name for p in parameters)}), and a norm takes one tensor"
    devices = (tensor.device for tensor in found.values() if not tensor.is_meta)
    return find("norm", _compare, module, next(devices, torch.device("cpu")))


def _compare(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> NormForm | str:
    shape = _shape(module)
    make_sample = functools.partial(_Sample, recorder, module, device, shape)
    sample = make_sample((torch.float32, torch.float32, False))
    (expected,) = in_both_modes(recorder, lambda: [sample.theirs()])
    forms = _forms(module, shape)
    errors = {form: [error(form.reference(sample.module, sample.x), expected, len(shape))] for form in forms}
    form = nearest("norm", errors, _tolerance(torch.float32), " of the largest element")
    _check_dims(sample, shape, expected)
    castings: dict[Key, Casting | str] = {}
    for (dtype, weight), autocast in itertools.product(DTYPES, (False, True)):
        key: Key = (dtype, weight if form.weight else None, autocast)
        if key not in castings and (found := _casting(make_sample, key, form)) is not None:
            castings[key] = found
    single = castings.get((torch.float32, torch.float32 if form.weight else None, False))
    if not isinstance(single, tuple):
        return f"it differs from {form}: {single or 'its gradient cannot be computed'}"
    return replace(form, castings=castings)


def _check_dims(sample: _Sample, shape: tuple[int, ...], expected: Tensor) -> None:
    """Raises Different if a module that normalizes rows is no norm over the last dims of inputs with more dims."""
    rows = expected.shape[0]
    for outer in ((2, rows // 2), (2, 3, rows // 6)):
        dims = len(outer) + len(shape)
        try:
            y = sample.module(sample.x.view(*outer, *shape)).flatten(0, len(outer) - 1)
        except Exception as raised:
            if len(outer) > 2:
                continue  # the module refuses such inputs
            raise Different(f"its forward raised {type(raised).__name__} for an input of {dims} dims") from None
        if not error(y, expected, len(shape)) <= _tolerance(torch.float32):
            raise Different(f"it does not normalise the last dims of an input of {dims} dims")


def _shape(module: torch.nn.Module) -> tuple[int, ...]:
    """Returns the sizes that the module normalizes, for an input of the comparison."""
    for parameter in parameters_of(module).values():
        return tuple(parameter.shape)
    given = getattr(module, "normalized_shape", None)
    if isinstance(given, (tuple, list)):
        return tuple(given)
    sizes = (getattr(module, name, None) for name in ("dim", "hidden_size"))
    return (next((size for size in sizes if isinstance(size, int)), 64),)


def _forms(module: torch.nn.Module, shape: tuple[int, ...]) -> Iterator[NormForm]:
    """Yields the norms that a module may compute."""
    names = parameters_of(module)
    weight, bias = (*names, None, None)[:2]
    fixed = shape if names or hasattr(module, "normalized_shape") else (0,)
    named = [value for value in module.__dict__.values() if isinstance(value, float) and 0 < value < 0.1]
    for eps in (*named, 1e-5, 1e-6, None):
        yield NormForm("layer_norm", weight, bias, fixed, eps)
        if bias is None:
            yield NormForm("rms_norm", weight, None, fixed, eps)
        if bias is None and weight is not None:
            yield NormForm("rms_norm", weight, None, fixed, eps, weight_offset=1.0)


class _Sample:
    """A copy of a module with random weights, and an input with rows of several magnitudes."""

    def __init__(
        self, recorder: Recorder, module: torch.nn.Module, device: torch.device, shape: tuple[int, ...], key: Key
    ) -> None:
        rows = len(SCALES) * math.ceil(ELEMENTS / (len(SCALES) * math.prod(shape)))
        random = functools.partial(torch.randn, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        scales = torch.tensor(SCALES, device="cpu").repeat(rows // len(SCALES))
        x = (random((rows, *shape)) + 0.5) * scales.view(-1, *[1] * len(shape))
        self.x = x.to(device, key[0]).requires_grad_()
        own = {
            name: torch.nn.Parameter((random(p.shape) / 2 + 0.3).to(device, key[1]))
            for name, p in parameters_of(module).items()
        }
        self.inputs: dict[str, Tensor] = {"x": self.x, **own}
        self.recorder = recorder
        self.module = recorder.copy(module, _parameters={name: own.get(name) for name in module._parameters})
        dtype = key[0] if key[0] in NARROW else torch.bfloat16
        self.scope: Any = functools.partial(torch.autocast, device.type, dtype) if key[2] else nullcontext

    def theirs(self) -> Tensor:
        """Returns the output of the module's own forward, without hooks."""
        with self.scope():
            result = self.module(self.x)
        if not isinstance(result, Tensor):
            raise TypeError(f"it returned {type(result).__name__}")
        return result

    def with_gradients(self, compute: Callable[[], Tensor]) -> list[Any]:
        """Returns an output and the gradients of input and parameters."""
        return with_gradients(compute(), list(self.inputs.values()), allow_unused=True)


def _casting(make_sample: Callable[[Key], _Sample], key: Key, form: NormForm) -> Casting | str | None:
    """Returns the casting with which tridal computes the same as a module, or why there is none.

    Returns None if the module itself does not compute these dtypes.
    """
    try:
        sample = make_sample(key)
        expected = in_both_modes(sample.recorder, lambda: sample.with_gradients(sample.theirs))
    except Different:
        raise
    except Exception:  # for example, a dtype that the device or the module does not support
        return None
    why = ""
    widenings: tuple[bool, ...] = (False, True) if key[0] in NARROW else (False,)
    if form.op == "layer_norm" and key[0] not in NARROW:
        widenings = (key[1] in NARROW,)  # tridal.layer_norm does not take weights with a smaller dtype than the input
    for widens, casting in itertools.product(widenings, ("gemma", "llama", "") if form.op == "rms_norm" else ("",)):
        y = form.reference(sample.module, sample.x, casting, widens)
        difference = _difference(sample, y, expected)
        if difference is None:
            return casting, widens
        why = why or difference
    return why


def _difference(sample: _Sample, y: Tensor, expected: Sequence[Any]) -> str | None:
    """Returns how an output and its gradients differ, or None if they differ only by single roundings."""
    wanted, *gradients = expected
    if y.dtype is not wanted.dtype or y.shape != wanted.shape:
        return f"the result is {name_of(wanted.dtype)} of shape {list(wanted.shape)[1:]}"
    found = error(y, wanted, y.dim() - 1)
    if not found <= _tolerance(y.dtype):
        return f"the result differs by {found:.1e} of the largest element"
    if y.dtype in NARROW and (share := flips(y, wanted)) > FLIPS:
        return f"the order of rounding differs: {share:.0%} of the elements are rounded to another number"
    tolerance = 8 * _tolerance(min(sample.x.dtype, y.dtype, key=lambda dtype: dtype.itemsize))
    for (name, x), got, gradient in zip(
        sample.inputs.items(), sample.with_gradients(lambda: y)[1:], gradients, strict=True
    ):
        found = error(got, gradient, x.dim() - (x is sample.x))  # a parameter is one row
        if not found <= tolerance:
            return f"the gradient of {name} differs by {found:.1e} of its largest element"
    return None


def _tolerance(dtype: torch.dtype) -> float:
    """Returns the error of a few roundings in a dtype, relative to the largest element of a row."""
    return {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 2 * torch.finfo(dtype).eps)
