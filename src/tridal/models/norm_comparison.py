"""Finds the norm that a module computes, by comparing results and gradients of random tensors.

A copy of the module with random weights is compared with the references of tridal's norms. Float32 shows the function.
The other dtypes show the order in which the module rounds and multiplies.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from tridal.models import comparison
from tridal.models.comparison import FLIPS, NARROW, in_both_modes
from tridal.models.norm_forms import Key, NormForm
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

    It is compared on the device of its parameters.
    """
    reason = _why_not(module)
    return comparison.find("norm", _compare, module, device_of(module)) if reason is None else reason


def parameters_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Returns the parameters by name, without those that are None and those of other modules inside."""
    return {name: tensor for name, tensor in module._parameters.items() if tensor is not None}


def device_of(module: torch.nn.Module) -> torch.device:
    """Returns the device for a comparison: that of a module's parameters, or the CPU if they have no memory."""
    devices = (tensor.device for tensor in parameters_of(module).values() if not tensor.is_meta)
    return next(devices, torch.device("cpu"))


def _why_not(module: torch.nn.Module) -> str | None:
    """Returns why a module cannot be compared, or None."""
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
    return None


def _compare(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> NormForm | str:
    shape = _shape(module)
    make_sample = functools.partial(_Sample, recorder, module, device, shape)
    sample = make_sample((torch.float32, torch.float32, False))
    (expected,) = in_both_modes(recorder, lambda: [sample.forward()])
    errors = {form: _row_error(form.reference(sample.module, sample.x), expected) for form in _forms(module, shape)}
    form = min(errors, key=lambda form: errors[form])
    if not errors[form] <= _tolerance(torch.float32):
        return f"it differs from the nearest norm, {form}, by {errors[form]:.1e} of the largest element"
    if (reason := _other_dims(sample, shape, expected)) is not None:
        return reason
    differences: dict[Key, str] = {}
    castings = {}
    for dtypes, autocast in itertools.product(DTYPES, (False, True)):
        key: Key = (dtypes[0], dtypes[1] if form.weight else None, autocast)
        if key not in castings and key not in differences:
            found = _casting(make_sample, key, form)
            if isinstance(found, str):
                differences[key] = found
            elif found is not None:
                castings[key] = found
    single: Key = (torch.float32, torch.float32 if form.weight else None, False)
    if single not in castings:
        return f"it differs from {form}: {differences.get(single, 'its gradient cannot be computed')}"
    return replace(form, castings=castings, differences=differences)


def _other_dims(sample: _Sample, shape: tuple[int, ...], expected: Tensor) -> str | None:
    """Returns why a module that normalises rows is no norm over the last dims of inputs with more dims, or None."""
    rows = expected.shape[0]
    for outer in ((2, rows // 2), (2, 3, rows // 6)):
        try:
            y = sample.module(sample.x.view(*outer, *shape)).flatten(0, len(outer) - 1)
        except Exception as error:
            if len(outer) > 2:
                continue  # the module refuses such inputs
            return f"its forward raised {type(error).__name__} for an input of {len(outer) + len(shape)} dims"
        if not _row_error(y, expected) <= _tolerance(torch.float32):
            return f"it does not normalise the last dims of an input of {len(outer) + len(shape)} dims"
    return None


def _shape(module: torch.nn.Module) -> tuple[int, ...]:
    """Returns the sizes that the module normalises, for an input of the comparison."""
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
    """A copy of a module with random weights, an input of rows of several magnitudes, and a gradient of the output."""

    def __init__(
        self, recorder: Recorder, module: torch.nn.Module, device: torch.device, shape: tuple[int, ...], key: Key
    ) -> None:
        rows = len(SCALES) * math.ceil(ELEMENTS / (len(SCALES) * math.prod(shape)))
        generator = torch.Generator("cpu").manual_seed(0)
        random = functools.partial(torch.randn, generator=generator, device="cpu")
        x = random((rows, *shape)) + 0.5
        scales = torch.tensor(SCALES, device="cpu").repeat(rows // len(SCALES))
        self.x = (x * scales.view(-1, *[1] * len(shape))).to(device, key[0]).requires_grad_()
        self.grad = (random((rows, *shape)) / 16).to(device)
        self.kind, self.autocast = device.type, key[2]
        dtype = key[1] or torch.float32
        self.parameters = {
            name: torch.nn.Parameter((random(p.shape) / 2 + 0.3).to(device, dtype))
            for name, p in parameters_of(module).items()
        }
        parameters = {name: self.parameters.get(name) for name in module._parameters}
        self.recorder, self.module = recorder, recorder.copy(module, _parameters=parameters)

    def forward(self) -> Tensor:
        """Returns the output of the module's own forward, without hooks."""
        dtype = self.x.dtype if self.x.dtype in NARROW else torch.bfloat16
        scope: Any = torch.autocast(self.kind, dtype) if self.autocast else nullcontext()
        with scope:
            result = self.module(self.x)
        if not isinstance(result, Tensor):
            raise TypeError(f"it returned {type(result).__name__}")
        return result

    def forward_and_gradients(self) -> list[Any]:
        """Returns the output and the gradients, which are the same in both modes."""

        def compute() -> list[Any]:
            y = self.forward()
            return [y, *self.gradients(y)]

        return list(in_both_modes(self.recorder, compute))

    def gradients(self, y: Tensor) -> tuple[Tensor, ...]:
        """Returns the gradients of input and parameters."""
        return torch.autograd.grad(y, (self.x, *self.parameters.values()), self.grad.to(y.dtype), allow_unused=True)


def _casting(make_sample: Callable[[Key], _Sample], key: Key, form: NormForm) -> tuple[str, bool] | str | None:
    """Returns the casting with which tridal computes the same as a module, or why there is none.

    Returns None if the module itself does not compute these dtypes.
    """
    try:
        sample = make_sample(key)
        expected, *gradients = sample.forward_and_gradients()
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
        difference = _difference(y, expected) or _gradient_difference(sample, y, tuple(gradients))
        if difference is None:
            return casting, widens
        why = why or difference
    return why


def _gradient_difference(sample: _Sample, y: Tensor, expected: tuple[Tensor, ...]) -> str | None:
    """Returns how a gradient of y differs, or None. A parameter is compared as one row."""
    tolerance = 8 * _tolerance(min(sample.x.dtype, y.dtype, key=lambda dtype: dtype.itemsize))
    for name, *pair in zip(("x", *sample.parameters), sample.gradients(y), expected, strict=True):
        got, wanted = pair if name == "x" else (t if t is None else t.flatten()[None] for t in pair)
        error = _row_error(got, wanted)
        if not error <= tolerance:
            return f"the gradient of {name} differs by {error:.1e} of its largest element"
    return None


def _difference(got: Tensor, expected: Tensor) -> str | None:
    """Returns how two outputs differ, or None if they differ only by single roundings."""
    if got.dtype is not expected.dtype or got.shape != expected.shape:
        return f"the result is {_short(expected.dtype)} of shape {list(expected.shape)[1:]}"
    error = _row_error(got, expected)
    if not error <= _tolerance(got.dtype):
        return f"the result differs by {error:.1e} of the largest element"
    share = float((got != expected).double().mean())
    if got.dtype in NARROW and share > FLIPS:
        return f"the order of rounding differs: {share:.0%} of the elements are rounded to another number"
    return None


def _row_error(got: Tensor | None, expected: Tensor | None) -> float:
    """Returns the largest error of an element, relative to the largest element of its row; inf for NaN."""
    if got is None or expected is None or got.shape != expected.shape:
        return 0.0 if got is expected else math.inf
    a, b = (tensor.detach().cpu().double().flatten(1) for tensor in (got, expected))
    error = float(((a - b).abs().amax(1) / b.abs().amax(1)).max())
    return error if error == error else math.inf


def _tolerance(dtype: torch.dtype) -> float:
    """Returns the error of a few roundings in a dtype, relative to the largest element of a row."""
    return {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 2 * torch.finfo(dtype).eps)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(form: NormForm, module: torch.nn.Module) -> list[str]:
    """Returns for which inputs a module computes itself, given the dtype of its parameters: one text, or none."""
    dtypes = {tensor.dtype for tensor in parameters_of(module).values()}
    texts = []
    for (dtype, weight, autocast), why in form.differences.items():
        if autocast or (weight is None and dtype is torch.float64) or (weight is not None and weight not in dtypes):
            continue
        texts.append(f"{_short(dtype)} inputs ({why})")
    return [f"it computes these itself: {', '.join(texts)}"] if texts else []
