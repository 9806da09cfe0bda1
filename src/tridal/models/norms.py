"""Replaces a norm by `tridal.rms_norm` or `tridal.layer_norm`, if results and gradients of random tensors are the same.

A copy of the module with random weights is compared with the references of tridal's norms. Float32 shows the function.
The other dtypes show the order in which the module rounds and multiplies.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tridal.devices.types import ALIGNMENT
from tridal.library.norms.functions import layer_norm, rms_norm
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM
from tridal.models import comparison
from tridal.models.comparison import NARROW, error, find, in_both_modes, nearest, tolerance_of
from tridal.models.reads import Different, Form, Recorder
from tridal.ops import row_maths
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.torch import private

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
MAX_COMPILED_COLS = 8192
"""A compiler fuses norms of at most this many columns with other operations. Rows must begin at aligned addresses."""
Key = tuple[torch.dtype, torch.dtype | None, bool]
"""The dtype of the input, the dtype of the weight, and whether autocast is enabled."""
_DISABLED = torch.nn.Parameter.__torch_function__  # also of subclasses that do not override functions, such as DTensor


@dataclass(frozen=True)
class NormForm(Form):
    """The norm that a module computes, as a call of `tridal.rms_norm` or `tridal.layer_norm`."""

    op: str
    weight: str | None
    """The name of the parameter, or None for a norm without a weight."""
    bias: str | None
    shape: tuple[int, ...]
    """The normalised sizes. (0,) is the last dim, of any size."""
    eps: float | None
    """None is the eps of the dtype of statistics."""
    weight_offset: float = 0.0
    castings: Mapping[Key, tuple[str, bool] | str] = field(default_factory=dict, hash=False)
    """For each key: the casting of `rms_norm` and whether tensors are cast to float32, or how the module differs."""

    @property
    def compiler_is_faster(self) -> bool:
        """Whether a compiler fuses the norm with other operations: it has few columns, and aligned rows."""
        cols = math.prod(self.shape)
        return 0 < cols <= MAX_COMPILED_COLS and cols % ALIGNMENT == 0

    def compute(self, module: Any, x: Tensor) -> Tensor | None:
        """tridal's norm computes inputs for which it is known to compute the same."""
        weight = _parameter(module, self.weight)
        if _has_torch_function(x) or _has_torch_function(weight) or x.is_nested:
            return None
        for name, parameter in module._parameters.items():
            if parameter is not None and name != self.weight and name != self.bias:
                return None  # it was registered later
        shape = x.shape[x.dim() - len(self.shape) :]
        if shape != self.shape and self.shape != (0,):
            return None  # the error of the module is clearer
        autocast = private.autocast_enabled(x.device.type)
        found = self.castings.get((x.dtype, None if weight is None else weight.dtype, autocast))
        if not isinstance(found, tuple):
            return None
        if not autocast:
            return self._call(module, x, shape, weight, *found)
        with private.without_autocast(x.device.type):
            return self._call(module, x, shape, weight, *found)

    def _call(self, module: Any, x: Any, shape: Any, weight: Any, casting: Any, widens: bool) -> Tensor:
        x, weight, bias, eps = self._tensors(module, x, weight, widens)
        if self.op == LAYER_NORM.name:
            return layer_norm(x, shape, weight, bias, eps)
        return rms_norm(x, shape, weight, eps, weight_offset=self.weight_offset, casting=casting or None)

    def reference(self, module: Any, x: Tensor, casting: str = "", widens: bool = False) -> Tensor:
        """Computes the same by the op's reference in torch's ops, with autocast disabled."""
        with private.without_autocast(x.device.type):
            x, weight, bias, eps = self._tensors(module, x, _parameter(module, self.weight), widens)
            dims = len(self.shape)
            if self.op == LAYER_NORM.name:
                result = row_maths.compute(LAYER_NORM, x, None, weight, bias, dims, eps)[0]
            else:
                result = row_maths.compute(RMS_NORM, x, None, weight, dims, eps, self.weight_offset, casting)[0]
        assert result is not None
        return result

    def _tensors(self, module: Any, x: Tensor, weight: Any, widens: bool) -> tuple[Any, Any, Any, float]:
        bias = _parameter(module, self.bias)
        if widens:
            x = x.to(accumulator(x))
            weight, bias = (t if t is None else t.to(accumulator(t)) for t in (weight, bias))
        return x, weight, bias, torch.finfo(accumulator(x)).eps if self.eps is None else self.eps

    def __str__(self) -> str:
        text = f"tridal.{self.op}"
        text += f", weight_offset={self.weight_offset:g}" if self.weight_offset else ""
        narrow = self.castings.get((torch.bfloat16, None if self.weight is None else torch.bfloat16, False))
        return text + (f", casting={narrow[0]!r}" if isinstance(narrow, tuple) and narrow[0] else "")

    def describe(self, module: torch.nn.Module) -> str | None:
        """For which inputs a module computes itself, given the dtypes of its parameters, or None."""
        dtypes = {tensor.dtype for tensor in _parameters(module).values()}
        texts = [
            f"{str(dtype)[6:]} inputs ({why})"
            for (dtype, weight, autocast), why in self.castings.items()
            if isinstance(why, str) and not autocast and (weight in dtypes if weight else dtype is not torch.float64)
        ]
        return f"it computes these itself: {', '.join(texts)}" if texts else None


def _parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in module._parameters.items() if tensor is not None}


def _has_torch_function(tensor: Any) -> bool:
    # torch.overrides.has_torch_function is true for all tensors in a mode, for example after `set_default_device`.
    return tensor is not None and type(tensor) is not Tensor and type(tensor).__torch_function__ is not _DISABLED


def _parameter(module: Any, name: str | None) -> Any:
    """Returns a parameter of a module. FSDP may replace it by an attribute while the module computes."""
    if name is None:
        return None
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def find_form(module: torch.nn.Module) -> NormForm | str:
    """Returns the norm that a module computes, or why there is none. The module is not called, and keeps its tensors.

    It is compared on the device of its parameters, or on the CPU if they have no memory.
    """
    if module._modules:
        return f"it calls the modules {', '.join(module._modules)}, and a norm calls none"
    found = _parameters(module)
    if any(tensor.dtype not in itertools.chain(*DTYPES) for tensor in found.values()):
        kinds = sorted({f"{type(tensor).__name__} of {tensor.dtype}" for tensor in found.values()})
        return f"tridal has no norm with parameters of these dtypes: {', '.join(kinds)}"
    if len(found) > 2:
        return f"it has the parameters {', '.join(found)}, and a norm has a weight and a bias"
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if len([p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]) != 1:
        return f"its forward takes ({', '.join(p.name for p in parameters)}), and a norm takes one tensor"
    devices = (tensor.device for tensor in found.values() if not tensor.is_meta)
    return find("norm", _compare, module, next(devices, torch.device("cpu")), _shape(module))


def _shape(module: torch.nn.Module) -> tuple[int, ...]:
    if found := _parameters(module):
        return tuple(next(iter(found.values())).shape)
    sizes = [getattr(module, name, None) for name in ("normalized_shape", "dim", "hidden_size")]
    if isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    return (next((size for size in sizes if isinstance(size, int)), 64),)


def _forms(module: torch.nn.Module, shape: tuple[int, ...]) -> Iterator[NormForm]:
    names = _parameters(module)
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

    def __init__(self, recorder: Recorder, device: torch.device, shape: tuple[int, ...], key: Key) -> None:
        self.recorder, self.key = recorder, key
        dtype, weight, autocast = key
        rows = len(SCALES) * math.ceil(ELEMENTS / (len(SCALES) * math.prod(shape)))
        random = functools.partial(torch.randn, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        scales = torch.tensor(SCALES, device="cpu").repeat(rows // len(SCALES))
        x = (random((rows, *shape)) + 0.5) * scales.view(-1, *[1] * len(shape))
        self.x = x.to(device, dtype).requires_grad_()
        parameters = {
            name: torch.nn.Parameter((random(p.shape) / 2 + 0.3).to(device, weight))
            for name, p in _parameters(recorder.module).items()
        }
        self.inputs = {"x": self.x, **parameters}
        self.module = recorder.copy(_parameters={**recorder.module._parameters, **parameters})
        narrow = dtype if dtype in NARROW else torch.bfloat16
        self.scope: Any = functools.partial(torch.autocast, device.type, narrow) if autocast else nullcontext

    def theirs(self) -> Tensor:
        with self.scope():
            result = self.module(self.x)
        if not isinstance(result, Tensor):
            raise TypeError(f"it returned {type(result).__name__}")
        return result

    def expected(self) -> Sequence[Any]:
        return in_both_modes(self.recorder, lambda: self.with_gradients(self.theirs()))

    def with_gradients(self, y: Tensor) -> list[Any]:
        return comparison.with_gradients(y, list(self.inputs.values()), allow_unused=True)


def _compare(recorder: Recorder, device: torch.device, shape: tuple[int, ...]) -> NormForm | str:
    sample = _Sample(recorder, device, shape, (torch.float32, torch.float32, False))
    (expected,) = in_both_modes(recorder, lambda: [sample.theirs()])
    forms = _forms(recorder.module, shape)
    errors = {form: [error(form.reference(sample.module, sample.x), expected, len(shape))] for form in forms}
    form = nearest("norm", errors, tolerance_of(torch.float32), " of the largest element")
    _check_dims(sample, shape, expected)
    castings: dict[Key, tuple[str, bool] | str] = {}
    for (dtype, weight), autocast in itertools.product(DTYPES, (False, True)):
        key: Key = (dtype, weight if form.weight else None, autocast)
        if key not in castings:
            try:
                sample = _Sample(recorder, device, shape, key)
                results = sample.expected()
            except Different:
                raise
            except Exception:  # for example, a dtype that the device or the module does not support
                continue
            castings[key] = _casting(sample, form, results)
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
        if not error(y, expected, len(shape)) <= tolerance_of(torch.float32):
            raise Different(f"it does not normalise the last dims of an input of {dims} dims")


def _casting(sample: _Sample, form: NormForm, expected: Sequence[Any]) -> tuple[str, bool] | str:
    why = ""
    dtype, weight, _ = sample.key
    widenings: tuple[bool, ...] = (False, True) if dtype in NARROW else (False,)
    if form.op == "layer_norm" and dtype not in NARROW:
        widenings = (weight in NARROW,)  # tridal.layer_norm does not take weights with a smaller dtype than the input
    for widens, casting in itertools.product(widenings, ("gemma", "llama", "") if form.op == "rms_norm" else ("",)):
        reason = _difference(sample, form.reference(sample.module, sample.x, casting, widens), expected)
        if reason is None:
            return casting, widens
        why = why or reason
    return why


def _difference(sample: _Sample, y: Tensor, expected: Sequence[Any]) -> str | None:
    """Returns how an output and its gradients differ, or None if they differ only by single roundings."""
    wanted, *gradients = expected
    if y.dtype is not wanted.dtype or y.shape != wanted.shape:
        return f"the result is {str(wanted.dtype)[6:]} of shape {list(wanted.shape)[1:]}"
    found = error(y, wanted, y.dim() - 1)
    if not found <= tolerance_of(y.dtype):
        return f"the result differs by {found:.1e} of the largest element"
    if y.dtype in NARROW and (reason := comparison.rounding(y, wanted)) is not None:
        return reason
    tolerance = 8 * tolerance_of(min(sample.x.dtype, y.dtype, key=lambda dtype: dtype.itemsize))
    names = (f"the gradient of {name}" for name in sample.inputs)
    row_dims = (x.dim() - (x is sample.x) for x in sample.inputs.values())  # a parameter is one row
    return comparison.difference(zip(names, sample.with_gradients(y)[1:], gradients, row_dims, strict=True), tolerance)
