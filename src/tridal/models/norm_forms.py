"""What a norm module computes, in the terms of tridal's norms, and the call that computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tridal.devices.types import ALIGNMENT
from tridal.library.norms.functions import layer_norm, rms_norm
from tridal.library.norms.layer_norm import LAYER_NORM
from tridal.library.norms.rms_norm import RMS_NORM
from tridal.models.reads import NOTHING, Reads
from tridal.models.replacements import torch_computes
from tridal.ops import row_maths
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.torch import private

MAX_COMPILED_COLS = 8192
"""A compiler fuses norms of at most this many columns with other operations. Rows must begin at aligned addresses."""
Key = tuple[torch.dtype, torch.dtype | None, bool]
"""The dtype of the input, the dtype of the weight, and whether autocast is enabled."""
Casting = tuple[str, bool]
"""The casting of `tridal.rms_norm`, and whether tensors are cast to float32."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DISABLED = torch.nn.Parameter.__torch_function__
"""The `__torch_function__` of subclasses that do not override torch's functions, for example of DTensor."""


@dataclass(frozen=True)
class NormForm:
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
    castings: Mapping[Key, Casting | str] = field(default_factory=dict, hash=False)
    """For each key: the casting with which tridal computes the same, or how the module differs."""
    reads: Reads = NOTHING

    @property
    def compiler_is_faster(self) -> bool:
        """Whether compiled functions get the operations of the class. docs/models.md has the measurements."""
        cols = math.prod(self.shape)
        return 0 < cols <= MAX_COMPILED_COLS and cols % ALIGNMENT == 0

    def compute(self, module: Any, x: Any) -> torch.Tensor | None:
        """Returns the module's output, or None if the module computes this input itself."""
        weight = _parameter(module, self.weight)
        if not isinstance(x, torch.Tensor) or _has_torch_function(x) or _has_torch_function(weight) or x.is_nested:
            return None
        if torch_computes(x.device) or (torch.compiler.is_dynamo_compiling() and self.compiler_is_faster):
            return None
        for name, parameter in module._parameters.items():
            if parameter is not None and name != self.weight and name != self.bias:
                return None  # it was registered later
        shape = x.shape[x.dim() - len(self.shape) :]
        if shape != self.shape and self.shape != (0,):
            return None  # the error of the module is clearer
        autocast = private.autocast_enabled(x.device.type)
        found = self.castings.get((x.dtype, None if weight is None else weight.dtype, autocast))
        if not isinstance(found, tuple) or not self.reads.hold(module):
            return None
        if not autocast:
            return self._call(module, x, shape, weight, *found)
        with private.without_autocast(x.device.type):
            return self._call(module, x, shape, weight, *found)

    def _call(self, module: Any, x: Any, shape: Any, weight: Any, casting: Any, widens: bool) -> torch.Tensor:
        x, weight, bias, eps = self._tensors(module, x, weight, widens)
        if self.op == LAYER_NORM.name:
            return layer_norm(x, shape, weight, bias, eps)
        return rms_norm(x, shape, weight, eps, weight_offset=self.weight_offset, casting=casting or None)

    def _tensors(self, module: Any, x: torch.Tensor, weight: Any, widens: bool) -> tuple[Any, Any, Any, float]:
        """Returns the input, the weight, the bias and the eps of a call of the module."""
        bias = _parameter(module, self.bias)
        if widens:
            x = x.to(accumulator(x))
            weight, bias = (t if t is None else t.to(accumulator(t)) for t in (weight, bias))
        return x, weight, bias, torch.finfo(accumulator(x)).eps if self.eps is None else self.eps

    def reference(self, module: Any, x: torch.Tensor, casting: str = "", widens: bool = False) -> torch.Tensor:
        """Returns the same, computed by the op's reference in torch's ops, with autocast disabled."""
        with private.without_autocast(x.device.type):
            x, weight, bias, eps = self._tensors(module, x, _parameter(module, self.weight), widens)
            if self.op == LAYER_NORM.name:
                result = row_maths.compute(LAYER_NORM, x, None, weight, bias, len(self.shape), eps)[0]
            else:
                arguments = len(self.shape), eps, self.weight_offset, casting
                result = row_maths.compute(RMS_NORM, x, None, weight, *arguments)[0]
        assert result is not None
        return result

    def __str__(self) -> str:
        text = f"tridal.{self.op}"
        text += f", weight_offset={self.weight_offset:g}" if self.weight_offset else ""
        narrow = self.castings.get((torch.bfloat16, None if self.weight is None else torch.bfloat16, False))
        return text + (f", casting={narrow[0]!r}" if isinstance(narrow, tuple) and narrow[0] else "")

    def describe(self, module: torch.nn.Module) -> list[str]:
        """Returns for which inputs a module computes itself, given the dtype of its parameters: one text, or none."""
        dtypes = {tensor.dtype for tensor in parameters_of(module).values()}
        texts = []
        for (dtype, weight, autocast), why in self.castings.items():
            is_told = not autocast and (weight in dtypes if weight is not None else dtype is not torch.float64)
            if isinstance(why, str) and is_told:
                texts.append(f"{name_of(dtype)} inputs ({why})")
        return [f"it computes these itself: {', '.join(texts)}"] if texts else []


def parameters_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters by name, without those that are None and those of other modules inside."""
    return {name: tensor for name, tensor in module._parameters.items() if tensor is not None}


def name_of(dtype: torch.dtype) -> str:
    """Returns the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def _has_torch_function(tensor: Any) -> bool:
    """Returns whether torch calls the `__torch_function__` of a tensor's class.

    `torch.overrides.has_torch_function` is true for all tensors in a mode, for example after `set_default_device`.
    """
    kind = type(tensor)
    return tensor is not None and kind not in _PLAIN and kind.__torch_function__ is not _DISABLED


def _parameter(module: Any, name: str | None) -> Any:
    """Returns a parameter of a module. FSDP may replace it by an attribute while the module computes."""
    if name is None:
        return None
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found
