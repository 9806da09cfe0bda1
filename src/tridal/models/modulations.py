"""Replaces norm(x) * (1 + scale) + shift in a forward by a modulated norm of tridal, as diffusion transformers have it.

A replaced module runs the code of its class, in which a function computes each modulation, so it does not matter what
else the forward computes. Each norm is compared together with a modulation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tridal.errors import ShapeError
from tridal.library.modulated_norm.functions import modulated_layer_norm, modulated_rms_norm
from tridal.models import norm_comparison
from tridal.models.comparison import find
from tridal.models.forwards import decorated
from tridal.models.modulation_source import used_norms, with_function
from tridal.models.norms import NormForm, is_plain
from tridal.models.reads import Form, Recorder, names_in, own_forward
from tridal.models.replacements import Rewritten, base_of, class_name, is_called

Tensor = torch.Tensor
_MODULATED: Mapping[str, Any] = {"layer_norm": modulated_layer_norm, "rms_norm": modulated_rms_norm}


@dataclass(frozen=True)
class ModulatedNormForm(NormForm):
    """The norm of a module with a scale and a shift, as a call of a function of tridal."""

    others: ClassVar[tuple[str, ...]] = ("scaling", "shift")

    def is_norm_of(self, module: Any) -> bool:
        """Returns whether a module has the class that was compared, and no hook reads or changes its result."""
        return base_of(module) is self.reads.parts[0].kind and is_called(module)

    def compute(self, module: Any, x: Tensor, *others: Any) -> Tensor | None:
        """torch broadcasts a scale and a shift of more shapes."""
        try:
            return super().compute(module, x, *others)
        except ShapeError:
            return None

    def _takes(self, x: Tensor, *others: Any) -> bool:
        scale, shift = others
        return is_plain(scale, x) and (shift is None or (is_plain(shift, x) and shift.dtype is scale.dtype))

    def _call(
        self, module: Any, x: Any, others: Any, shape: Any, weight: Any, casting: Any, widens: bool, adds: bool
    ) -> Tensor:
        x, weight, bias, eps = self._tensors(module, x, weight, widens, adds)
        function, (scale, shift) = _MODULATED[self.op.removeprefix("modulated_")], others
        columns = (weight, bias) if function is modulated_layer_norm else (weight,)
        y: Tensor = function(x, scale, shape, *columns, eps, shift=shift, casting=casting or None)
        return y


class _Sample(norm_comparison.Sample):
    """A copy of a norm, and a scale and a shift for each element."""

    names = ModulatedNormForm.others

    def call(self) -> Any:
        scale, shift = self.others.values()
        return self.module(self.x) * (1 + scale) + shift


def _compare(recorder: Recorder, device: torch.device, norm: NormForm) -> ModulatedNormForm | str:
    if norm.options or norm.op not in _MODULATED:
        return f"{norm} has no modulation"
    form = ModulatedNormForm(f"modulated_{norm.op}", norm.weight, norm.bias, norm.shape, norm.eps)
    shape = (64,) if norm.shape == (0,) else norm.shape
    return norm_comparison.with_castings(functools.partial(_Sample, recorder, device, shape), form)


@dataclass(frozen=True)
class ModulationForm(Form):
    """The modulated norms that a forward computes, by the names of the norms."""

    norms: Mapping[str, ModulatedNormForm] = field(default_factory=dict, hash=False)

    def describe(self, module: torch.nn.Module) -> str | None:
        """The inputs whose modulation the code of the class computes."""
        found = (form.describe(module._modules[name]) for name, form in self.norms.items())  # type: ignore[arg-type]
        return "; ".join(dict.fromkeys(filter(None, found))) or None

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, form in self.norms.items():
            names.setdefault(str(form), []).append(name)
        return "; ".join(f"{function} for {', '.join(modules)}" for function, modules in names.items())


class Modulated(Rewritten):
    """A forward with modulations. The form says which norms are modulated."""

    def _tridal_rewritten(self, forward: Any) -> Any:
        return _with_ours(forward, tuple(self._tridal_form.norms))


def _compute(module: Any, name: str, x: Any, scale: Any, shift: Any) -> Any:
    """Returns norm(x) * (1 + scale) + shift for a norm inside a module."""
    norm, form = getattr(module, name), module._tridal_form.norms[name]
    if form.is_norm_of(norm) and form.computes(norm, x) and (y := form.compute(norm, x, scale, shift)) is not None:
        return y
    y = norm(x) * (1 + scale)
    return y if shift is None else y + shift


@functools.cache
def _with_ours(forward: Any, names: tuple[str, ...]) -> Any:
    """Returns `forward` with the same decorators, in which `_compute` computes the modulations of some norms.

    Returns `forward` itself if a decorator hides the function.
    """
    inner: Any = inspect.unwrap(forward)
    return decorated(forward, inner, with_function(inner, names, _compute)) or forward


def _norms_of(module: Any) -> tuple[str, ...]:
    """Returns the names of the norms inside a module that its forward modulates."""
    forward, modules = own_forward(module), module._modules.items()
    names = [name for name, m in modules if m is not None and "norm" in class_name(m).lower() and not m._modules]
    used = {*names} & {*names_in(forward)}
    return used_norms(forward, module, used) if used else ()


def has_modulation(module: torch.nn.Module) -> bool:
    """Returns whether the forward of a module modulates the result of a norm inside."""
    return bool(_norms_of(module))


def find_form(module: Any) -> ModulationForm | str:
    """Returns the modulated norms that a module computes, or why tridal computes none of them."""
    norms, reason = {}, ""
    for name in _norms_of(module):
        norm = module._modules[name]
        found: Any = norm_comparison.find_form(norm)
        if isinstance(found, NormForm):
            found = find("modulated norm", _compare, norm, norm_comparison.device_of(norm), found)
        if isinstance(found, ModulatedNormForm):
            norms[name] = found
        else:
            reason = reason or f"{name}: {found}"
    forward = type(module).forward
    if norms and _with_ours(forward, tuple(norms)) is forward:
        return "a decorator of its forward keeps the code that modulates a norm outside its closure"
    return ModulationForm(norms=norms) if norms else reason
