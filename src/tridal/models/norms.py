"""The norm that a module computes, as a call of `tridal.rms_norm`, `tridal.layer_norm` or `tridal.gated_rms_norm`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tridal.devices.types import ALIGNMENT
from tridal.library.gated_norm.functions import gated_rms_norm
from tridal.library.gated_norm.gated_rms_norm import GATED_RMS_NORM
from tridal.library.modulated_norm.modulated_norm import MODULATED_LAYER_NORM, MODULATED_RMS_NORM
from tridal.library.norms.functions import layer_norm, rms_norm
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM
from tridal.models.reads import Form
from tridal.ops import row_math
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.torch import private

Tensor = torch.Tensor
OPS = {op.name: op for op in (RMS_NORM, LAYER_NORM, GATED_RMS_NORM, MODULATED_LAYER_NORM, MODULATED_RMS_NORM)}
MAX_COMPILED_COLS = 8192
"""A compiler fuses norms of at most this many columns with other operations. Rows must begin at aligned addresses."""
Key = tuple[torch.dtype, torch.dtype | None, bool, torch.dtype | None]
"""The dtypes of the input and of the weight, whether autocast is enabled, and the dtype of the gate."""
Casting = tuple[str, bool, bool]
"""The casting of the function, whether tensors are cast to float32, and whether torch adds the offset to the weight."""
_DISABLED = torch.nn.Parameter.__torch_function__  # also of subclasses that do not override functions, such as DTensor


@dataclass(frozen=True)
class NormForm(Form):
    """The norm that a module computes, as a call of a function of tridal."""

    others: ClassVar[tuple[str, ...]] = ()
    """The names of the tensors beside the input, as arguments of the op."""
    op: str
    weight: str | None
    """The name of the parameter, or None for a norm without a weight."""
    bias: str | None
    shape: tuple[int, ...]
    """The normalized sizes. (0,) is the last dim, of any size."""
    eps: float | None
    """None is the eps of the dtype of statistics."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of the function, by name."""
    castings: Mapping[Key, Casting | str] = field(default_factory=dict, hash=False)
    """For each key: how the function is called, or how the module differs."""

    @property
    def compiler_is_faster(self) -> bool:
        """Whether a compiler fuses the norm with other operations: it has few columns, and aligned rows."""
        cols = math.prod(self.shape)
        return 0 < cols <= MAX_COMPILED_COLS and cols % ALIGNMENT == 0

    def compute(self, module: Any, x: Tensor, *others: Any) -> Tensor | None:
        """tridal's norm computes inputs for which it is known to compute the same."""
        weight = _parameter(module, self.weight)
        if _has_torch_function(x) or _has_torch_function(weight) or x.is_nested:
            return None
        if not self._takes(x, *others):
            return None
        for name, parameter in module._parameters.items():
            if parameter is not None and name != self.weight and name != self.bias:
                return None  # it was registered later
        shape = x.shape[x.dim() - len(self.shape) :]
        if shape != self.shape and self.shape != (0,):
            return None  # the error of the module is clearer
        autocast = private.autocast_enabled(x.device.type)
        of_weight, of_other = None if weight is None else weight.dtype, others[0].dtype if others else None
        found = self.castings.get((x.dtype, of_weight, autocast, of_other))
        if not isinstance(found, tuple):
            return None
        if not autocast:
            return self._call(module, x, others, shape, weight, *found)
        with private.without_autocast(x.device.type):
            return self._call(module, x, others, shape, weight, *found)

    def _takes(self, x: Tensor, *others: Any) -> bool:
        """Whether tridal may compute the module for such tensors beside its input."""
        return not others

    def _call(
        self, module: Any, x: Any, others: Any, shape: Any, weight: Any, casting: Any, widens: bool, adds: bool
    ) -> Tensor:
        x, weight, bias, eps = self._tensors(module, x, weight, widens, adds)
        options: Any = {} if adds else self.options
        if self.op == LAYER_NORM.name:
            y: Tensor = layer_norm(x, shape, weight, bias, eps, **options)
        else:
            y = rms_norm(x, shape, weight, eps, casting=casting or None, **options)
        return y

    def reference(
        self, module: Any, *inputs: Tensor, casting: str = "", widens: bool = False, adds: bool = False
    ) -> Tensor:
        """Computes the same by the op's reference in torch's ops, with autocast disabled."""
        with private.without_autocast(inputs[0].device.type):
            x, weight, bias, eps = self._tensors(module, inputs[0], _parameter(module, self.weight), widens, adds)
            tensors = {"input": x, "weight": weight, "bias": bias, **dict(zip(self.others, inputs[1:], strict=False))}
            return self._math(tensors, {"eps": eps, "casting": casting, **({} if adds else self.options)})

    def _math(self, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Tensor:
        op, given = OPS[self.op], {"dims": len(self.shape), "weight_offset": 0.0, **tensors, **options}
        result = row_math.compute(op, *(given.get(a.name, a.default) for a in op.signature.arguments))[0]
        assert result is not None
        return result

    def _tensors(self, module: Any, x: Tensor, weight: Any, widens: bool, adds: bool) -> tuple[Any, Any, Any, float]:
        bias = _parameter(module, self.bias)
        if adds:
            weight = weight + self.options["weight_offset"]
        if widens:
            x = x.to(accumulator(x))
            weight, bias = (t if t is None else t.to(accumulator(t)) for t in (weight, bias))
        return x, weight, bias, torch.finfo(accumulator(x)).eps if self.eps is None else self.eps

    def __str__(self) -> str:
        values = {name: f"{v:g}" if isinstance(v, float) else repr(v) for name, v in self.options.items()}
        narrow = torch.bfloat16
        found = self.castings.get(
            (narrow, None if self.weight is None else narrow, False, narrow if self.others else None)
        )
        if isinstance(found, tuple) and found[0]:
            values["casting"] = repr(found[0])
        return "".join([f"tridal.{self.op}", *(f", {name}={value}" for name, value in values.items())])

    def describe(self, module: torch.nn.Module) -> str | None:
        """For which inputs a module computes itself, given the dtypes of its parameters, or None."""
        dtypes = {tensor.dtype for tensor in parameters_of(module).values()}
        texts = dict.fromkeys(
            f"{str(dtype)[6:]} inputs ({why})"
            for (dtype, weight, autocast, other), why in self.castings.items()
            if isinstance(why, str)
            and not autocast
            and (other in (None, dtype) or self.inputs > 1)
            and (weight in dtypes if weight else dtype is not torch.float64)
        )
        return f"it computes these itself: {', '.join(texts)}" if texts else None


@dataclass(frozen=True)
class GatedNormForm(NormForm):
    """The norm of a module that takes an input and a gate, as a call of `tridal.gated_rms_norm`."""

    inputs: ClassVar[int] = 2
    others: ClassVar[tuple[str, ...]] = ("gate",)
    groups: int = 1
    """Columns are normalized in this many groups. torch multiplies the results of several groups by the weight. If they
    are computed in float32, torch rounds the product to the dtype of the input."""

    def _takes(self, x: Tensor, *others: Any) -> bool:
        """The module may have no gate in a call."""
        (gate,) = others
        return is_plain(gate, x) and gate.shape == x.shape

    def _call(
        self, module: Any, x: Any, others: Any, shape: Any, weight: Any, casting: Any, widens: bool, adds: bool
    ) -> Tensor:
        dtype, (gate,) = x.dtype, others
        x, weight, _, eps = self._tensors(module, x, weight, widens, adds)
        options: Any = {"casting": casting or None, **self.options}
        if self.groups == 1:
            return gated_rms_norm(x, gate, shape, weight, eps, **options)
        x, gate = self._split(x), self._split(gate)
        y: Tensor = weight * gated_rms_norm(x, gate, x.shape[-1:], None, eps, **options).flatten(-2)
        return y.to(dtype) if widens else y

    def reference(self, module: Any, *inputs: Tensor, widens: bool = False, **options: Any) -> Tensor:
        """Computes the same by the op's reference in torch's ops, with autocast disabled."""
        y = super().reference(module, *inputs, widens=widens, **options)
        return y.to(inputs[0].dtype) if widens and self.groups > 1 else y

    def _math(self, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Tensor:
        if self.groups == 1:
            return super()._math(tensors, options)
        split = {name: self._split(tensors[name]) for name in ("input", "gate")}
        y: Tensor = tensors["weight"] * super()._math({**split, "weight": None}, options).flatten(-2)
        return y

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.groups, -1))

    def __str__(self) -> str:
        return super().__str__() + (f", {self.groups} groups" if self.groups > 1 else "")


def parameters_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a module by name, without those that are None."""
    return {name: tensor for name, tensor in module._parameters.items() if tensor is not None}


def _has_torch_function(tensor: Any) -> bool:
    # torch.overrides.has_torch_function is true for all tensors in a mode, for example after `set_default_device`.
    return tensor is not None and type(tensor) is not Tensor and type(tensor).__torch_function__ is not _DISABLED


def is_plain(other: Any, x: Tensor) -> bool:
    """Whether another value is a tensor of the same device as an input, which overrides no function of torch."""
    plain = isinstance(other, Tensor) and not _has_torch_function(other) and not other.is_nested
    return plain and other.device == x.device


def _parameter(module: Any, name: str | None) -> Any:
    """Returns a parameter of a module. FSDP may replace it by an attribute while the module computes."""
    if name is None:
        return None
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found
