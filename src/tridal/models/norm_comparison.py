"""Finds the norm that a module computes: its results and gradients of random tensors are those of tridal.

A copy of the module with random weights is compared with the references of tridal's norms. Float32 shows the function.
The other dtypes show the order in which the module rounds and multiplies.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tridal.models import comparison
from tridal.models.comparison import NARROW, error, find, in_both_modes, nearest, tolerance_of
from tridal.models.norms import Casting, GatedNormForm, Key, NormForm, parameters_of
from tridal.models.reads import Different, Recorder

Tensor = torch.Tensor
Norm = TypeVar("Norm", bound=NormForm)
SCALES = (1e-3, 1e-2, 0.3, 1.0, 10.0, 100.0)
"""Magnitudes of the rows of an input. The first is below the square root of usual values of eps."""
ELEMENTS = 2048
"""At least this number of elements is compared, so that a different order of rounding is seen in 16-bit dtypes."""
DTYPES = (
    (torch.float32, torch.float32), (torch.float64, torch.float64),
    *itertools.chain.from_iterable(((d, d), (d, torch.float32), (torch.float32, d)) for d in NARROW),
)  # fmt: skip
"""The dtypes of inputs and weights that are compared. A gate has one of both."""
GATE = re.compile("gate|^z$")
"""A name of the second argument of a gated norm."""
CASTINGS = {"layer_norm": ("",), "rms_norm": ("gemma", "llama", "")}
"""The castings of ops, by name. Others have `_CASTINGS`."""
_CASTINGS = ("", "llama")


def find_form(module: torch.nn.Module) -> NormForm | str:
    """Returns the norm that a module computes, or why there is none. The module is not called, and keeps its tensors.

    It is compared on the device of its parameters, or on the CPU if they have no memory.
    """
    if module._modules:
        return f"it calls the modules {', '.join(module._modules)}, and a norm calls none"
    found = parameters_of(module)
    if any(tensor.dtype not in itertools.chain(*DTYPES) for tensor in found.values()):
        kinds = sorted({f"{type(tensor).__name__} of {tensor.dtype}" for tensor in found.values()})
        return f"tridal has no norm with parameters of these dtypes: {', '.join(kinds)}"
    if len(found) > 2:
        return f"it has the parameters {', '.join(found)}, and a norm has a weight and a bias"
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    fixed = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    gated = len(fixed) == 2 and GATE.search(fixed[1]) is not None
    if len(fixed) != 1 and not gated:
        names = ", ".join(p.name for p in parameters)
        return f"its forward takes ({names}), and a norm takes one tensor, or a tensor and a gate"
    return find("norm", _compare, module, device_of(module), _shape(module), gated)


def device_of(module: torch.nn.Module) -> torch.device:
    """Returns the device on which a module is compared."""
    devices = (tensor.device for tensor in parameters_of(module).values() if not tensor.is_meta)
    return next(devices, torch.device("cpu"))


def _shape(module: torch.nn.Module) -> tuple[int, ...]:
    if found := parameters_of(module):
        return tuple(next(iter(found.values())).shape)
    sizes = [getattr(module, name, None) for name in ("normalized_shape", "dim", "hidden_size")]
    if isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    return (next((size for size in sizes if isinstance(size, int)), 64),)


def _forms(module: torch.nn.Module, shape: tuple[int, ...], gated: bool) -> Iterator[NormForm]:
    names = parameters_of(module)
    weight, bias = (*names, None, None)[:2]
    fixed = shape if names or hasattr(module, "normalized_shape") else (0,)
    named = [value for value in module.__dict__.values() if isinstance(value, float) and 0 < value < 0.1]
    for eps in dict.fromkeys((*named, 1e-5, 1e-6, None)):
        if gated:
            for options, groups in itertools.product(_GATES, _groups(module, shape) if weight else (1,)):
                yield GatedNormForm("gated_rms_norm", weight, None, fixed, eps, options, groups=groups)
            continue
        for op, options in itertools.product(("layer_norm", "rms_norm"), ({}, {"weight_offset": 1.0})):
            if (bias is None or op == "layer_norm") and (weight is not None or not options):
                yield NormForm(op, weight, bias, fixed, eps, options)


_GATES: tuple[dict[str, Any], ...] = tuple(
    {**activation, **order}
    for activation in ({}, {"activation": "sigmoid"})
    for order in ({}, {"gate_first": True})
)  # fmt: skip
"""The options of gated norms."""


def _groups(module: torch.nn.Module, shape: tuple[int, ...]) -> set[int]:
    """The numbers of groups that a module may have, from an attribute for their number or their size."""
    sizes = [v for name, v in module.__dict__.items() if "group" in name and isinstance(v, int) and v > 0]
    given = {groups for size in sizes for groups in (size, shape[-1] // size) if groups and shape[-1] % groups == 0}
    return {1, *(given if len(shape) == 1 else ())}


class Sample:
    """A copy of a module with random weights, an input with rows of several magnitudes, and further inputs.

    The key has a dtype for these, or None if there are none.
    """

    names: tuple[str, ...] = ("gate",)
    """The names of the further inputs."""

    def __init__(self, recorder: Recorder, device: torch.device, shape: tuple[int, ...], key: Key) -> None:
        self.recorder, self.key = recorder, key
        dtype, weight, autocast, other = key
        rows = len(SCALES) * math.ceil(ELEMENTS / (len(SCALES) * math.prod(shape)))
        random = functools.partial(torch.randn, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        scales = torch.tensor(SCALES, device="cpu").repeat(rows // len(SCALES))
        x = (random((rows, *shape)) + 0.5) * scales.view(-1, *[1] * len(shape))
        self.x = x.to(device, dtype).requires_grad_()
        parameters = {
            name: torch.nn.Parameter((random(p.shape) / 2 + 0.3).to(device, weight))
            for name, p in parameters_of(recorder.module).items()
        }
        names = () if other is None else self.names
        self.others = {name: random(x.shape).to(device, other).requires_grad_() for name in names}
        self.inputs = {"x": self.x, **self.others, **parameters}
        self.module = recorder.copy(_parameters={**recorder.module._parameters, **parameters})
        narrow = dtype if dtype in NARROW else torch.bfloat16
        self.scope: Any = functools.partial(torch.autocast, device.type, narrow) if autocast else nullcontext

    def call(self) -> Any:
        """Calls the copy."""
        return self.module(self.x, *self.others.values())

    def theirs(self) -> Tensor:
        """Returns the result of the copy."""
        with self.scope():
            result = self.call()
        if not isinstance(result, Tensor):
            raise TypeError(f"it returned {type(result).__name__}")
        return result

    def expected(self) -> Sequence[Any]:
        """Returns the result of the copy and its gradients."""
        return in_both_modes(self.recorder, lambda: self.with_gradients(self.theirs()))

    def with_gradients(self, y: Tensor) -> list[Any]:
        """Returns a result and the gradients of all inputs and parameters."""
        return comparison.with_gradients(y, list(self.inputs.values()), allow_unused=True)


def _compare(recorder: Recorder, device: torch.device, shape: tuple[int, ...], gated: bool) -> NormForm | str:
    single = torch.float32
    sample = Sample(recorder, device, shape, (single, single, False, single if gated else None))
    (expected,) = in_both_modes(recorder, lambda: [sample.theirs()])
    forms = _forms(recorder.module, shape, gated)
    errors = {
        f: [error(f.reference(sample.module, sample.x, *sample.others.values()), expected, len(shape))] for f in forms
    }
    form = nearest("norm", errors, tolerance_of(torch.float32), " of the largest element")
    _check_dims(sample, shape, expected)
    return with_castings(functools.partial(Sample, recorder, device, shape), form)


def with_castings(make_sample: Callable[[Key], Sample], form: Norm) -> Norm | str:
    """Returns a norm with what a module computes in each combination of dtypes, or how it differs in float32."""
    castings: dict[Key, Casting | str] = {}
    single, others = torch.float32, bool(form.others)
    for pair, autocast, index in itertools.product(DTYPES, (False, True), range(1 + others)):
        key: Key = (pair[0], pair[1] if form.weight else None, autocast, pair[index] if others else None)
        if key not in castings:
            try:
                sample = make_sample(key)
                results = sample.expected()
            except Different:
                raise
            except Exception:  # for example, a dtype that the device or the module does not support
                continue
            castings[key] = _casting(sample, form, results)
    found = castings.get((single, single if form.weight else None, False, single if others else None))
    if not isinstance(found, tuple):
        return f"it differs from {form}: {found or 'its gradient cannot be computed'}"
    return replace(form, castings=castings)


def _check_dims(sample: Sample, shape: tuple[int, ...], expected: Tensor) -> None:
    """Raises Different if a module that normalizes rows is no norm over the last dims of inputs with more dims."""
    rows = expected.shape[0]
    for outer in ((2, rows // 2), (2, 3, rows // 6)):
        dims = len(outer) + len(shape)
        try:
            inputs = (tensor.view(*outer, *shape) for tensor in (sample.x, *sample.others.values()))
            y = sample.module(*inputs).flatten(0, len(outer) - 1)
        except Exception as raised:
            if len(outer) > 2:
                continue  # the module refuses such inputs
            raise Different(f"its forward raised {type(raised).__name__} for an input of {dims} dims") from None
        if not error(y, expected, len(shape)) <= tolerance_of(torch.float32):
            raise Different(f"it does not normalize the last dims of an input of {dims} dims")


def _casting(sample: Sample, form: NormForm, expected: Sequence[Any]) -> Casting | str:
    why, castings = "", CASTINGS.get(form.op, _CASTINGS)
    if isinstance(form, GatedNormForm) and form.groups > 1 and "gate_first" in form.options:
        castings = castings[::-1]  # without a weight, both round alike, but "llama" multiplies in the order of Mamba-2
    dtype, weight, *_ = sample.key
    widenings: tuple[bool, ...] = (False, True) if dtype in NARROW else (False,)
    if form.op == "layer_norm" and dtype not in NARROW:
        widenings = (weight in NARROW,)  # tridal.layer_norm does not take weights with a smaller dtype than the input
    additions = (False, True) if "weight_offset" in form.options and weight in NARROW else (False,)
    for adds, widens, casting in itertools.product(additions, widenings, castings):
        y = form.reference(sample.module, sample.x, *sample.others.values(), casting=casting, widens=widens, adds=adds)
        reason = _difference(sample, y, expected)
        if reason is None:
            return casting, widens, adds
        why = why or reason
    return why


def _difference(sample: Sample, y: Tensor, expected: Sequence[Any]) -> str | None:
    """Returns how an output and its gradients differ, or None if they differ only by single roundings."""
    wanted, *gradients = expected
    if y.dtype is not wanted.dtype or y.shape != wanted.shape:
        return f"the result is {str(wanted.dtype)[6:]} of shape {list(wanted.shape)[1:]}"
    narrowest = min(sample.x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    found = error(y, wanted, y.dim() - 1)
    if not found <= tolerance_of(narrowest):
        return f"the result differs by {found:.1e} of the largest element"
    exact = y.dtype is narrowest  # if not, a 16-bit number may be rounded before the last multiplication
    if narrowest in NARROW and (reason := comparison.rounding(y, wanted, 0.0 if exact else tolerance_of(y.dtype))):
        return reason
    tolerance = 8 * tolerance_of(narrowest)
    names = (f"the gradient of {name}" for name in sample.inputs)
    row_dims = (
        x.dim() - (name == "x" or name in sample.others) for name, x in sample.inputs.items()
    )  # a parameter is one row
    return comparison.difference(zip(names, sample.with_gradients(y)[1:], gradients, row_dims, strict=True), tolerance)
