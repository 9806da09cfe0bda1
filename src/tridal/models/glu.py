"""Replaces the product of a gated MLP, activation(gate) * up, by `tridal.swiglu` or `tridal.geglu`, if it is the same.

A copy of the module with small random weights is compared. Its last layer is a permutation, so it returns the product.
Its dropout is replaced by fixed factors, and is called as before in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tridal.library.glu.functions import geglu, swiglu
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.models.comparison import Pair, error, find, find_casting, in_both_modes, nearest, with_gradients
from tridal.models.glu_parts import Parts, Roles, find_parts, roles_of
from tridal.models.reads import NOTHING, Reads, Recorder
from tridal.models.replacements import hooks_of, torch_computes
from tridal.ops import row_maths

Tensor = torch.Tensor
_SIZE, _ROWS = 32, 64  # enough 16-bit elements to see another order of rounding
Call = Callable[[Any, dict[str, Any], Tensor], Tensor]
"""Returns the output of a copy of a module, given its layers by name and an input."""


@dataclass(frozen=True)
class GluForm:
    """The gated MLP that a module computes. All names are those of modules inside."""

    approximate: str | None
    """The argument of `tridal.geglu`, or None for `tridal.swiglu`."""
    gate: str
    up: str | None
    """None if the layer `gate` computes both halves of one tensor."""
    down: str
    activation: str | None
    """None if the forward calls a function."""
    dropout: str | None
    casting: str = ""
    reads: Reads = NOTHING

    def compute(self, module: Any, x: Any) -> Tensor | None:
        """Returns the module's output, or None if the module computes this input itself.

        Modules inside are called as before, except the activation. A compiler fuses the operations of the module's
        class as well, so compiled functions get them.
        """
        modules = module._modules
        if not self.computes(module, x) or _weight_dtype(modules[self.gate]) is not _weight_dtype(modules[self.down]):
            return None  # the class may cast the product to the dtype of the last layer, as T5 does
        product = self.product(module, modules[self.gate](x), None if self.up is None else modules[self.up](x))
        return modules[self.down](product)  # type: ignore[no-any-return]

    def computes(self, module: Any, x: Any) -> bool:
        """Returns whether tridal computes the product of a module for an input."""
        if torch.compiler.is_dynamo_compiling() or not isinstance(x, Tensor) or torch_computes(x.device):
            return False
        activation = module._modules.get(self.activation)
        called = self.activation is None if activation is None else _is_called(activation)
        return called and self.reads.hold(module)

    def product(self, module: Any, gate: Tensor, up: Tensor | None) -> Tensor:
        """Returns activation(gate) * up, after the dropout of the module."""
        casting: Any = self.casting or None
        if self.approximate is None:
            product = swiglu(gate, up, casting=casting)
        else:
            product = geglu(gate, up, approximate=self.approximate, casting=casting)  # type: ignore[arg-type]
        return product if self.dropout is None else module._modules[self.dropout](product)

    def reference(self, gate: Tensor, up: Tensor | None) -> Tensor:
        """Returns the same, computed by the op's reference in torch's ops."""
        if up is None:
            gate, up = gate.chunk(2, -1)
        op, numbers = (SWIGLU, ()) if self.approximate is None else (GEGLU, (self.approximate,))
        result = row_maths.compute(op, gate, up, -1, gate.dtype, *numbers, self.casting)[0]
        assert result is not None
        return result

    def __str__(self) -> str:
        name = "tridal.swiglu" if self.approximate is None else f"tridal.geglu, approximate={self.approximate!r}"
        return f"{name}, casting={self.casting!r}" if self.casting else name


def _is_called(activation: Any) -> bool:
    """Returns whether a call of an activation is a call of its class's forward: no hook reads or changes the result."""
    return not hooks_of(activation) and getattr(activation.forward, "__func__", None) is type(activation).forward


def _weight_dtype(layer: Any) -> torch.dtype | None:
    return getattr(getattr(layer, "weight", None), "dtype", None)


class _Marked(torch.nn.Module):
    """Stands for a dropout in the comparison: doubles every other column, which is exact in all dtypes."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.arange(x.shape[-1], device=x.device) % 2).to(x.dtype)


def find_form(module: torch.nn.Module) -> GluForm | str:
    """Returns the gated MLP that a module computes, or why it is none. The module is not called."""
    parts = find_parts(module)
    return parts if isinstance(parts, str) else find("gated MLP", _compare, module, torch.device("cpu"))


def _compare(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> GluForm | str:
    parts: Any = find_parts(module)
    return compare(recorder, module, parts, roles_of(module), lambda copy, layers, x: copy(x))


def compare(
    recorder: Recorder, module: torch.nn.Module, parts: Parts, roles: Iterable[Roles], call: Call
) -> GluForm | str:
    """Returns the gated MLP that calls of copies of a module compute, with layers in one of several roles."""
    forms = [GluForm(approximate, *names, *parts) for names in roles for approximate in (None, "none", "tanh")]

    def pairs(form: GluForm, dtype: torch.dtype) -> Iterator[Pair]:
        return _pairs(recorder, module, call, form, dtype)

    form = nearest("product", {form: [error(*pair) for pair in pairs(form, torch.float64)] for form in forms})
    casting = find_casting(lambda casting, dtype: [next(pairs(replace(form, casting=casting), dtype))])
    if casting is None:
        return f"it differs from {form} in 16-bit dtypes: the order of rounding differs"
    return replace(form, casting=casting)


def _pairs(
    recorder: Recorder, module: torch.nn.Module, call: Call, form: GluForm, dtype: torch.dtype
) -> Iterator[Pair]:
    """Yields the product and its gradients, computed by the op's reference and by a copy of the module."""
    generator = torch.Generator("cpu").manual_seed(0)

    def linear(name: str, outputs: int) -> torch.nn.Linear:
        made = torch.nn.Linear(_SIZE, outputs, bias=False, device="meta")  # draws no numbers of the program's generator
        random = torch.randn(outputs, _SIZE, generator=generator, device="cpu") / _SIZE**0.5
        swapped = torch.eye(_SIZE, device="cpu").roll(1, 0)  # is exact, and shows what is done after the last layer
        made.weight = torch.nn.Parameter((swapped if name == form.down else random).to(dtype))
        return made

    names = (name for name in (form.gate, form.up, form.down) if name is not None)
    layers = {name: linear(name, _SIZE * (1 + (name == form.gate and form.up is None))) for name in names}
    inside: dict[str, Any] = {}
    if form.activation is not None:
        inside[form.activation] = recorder.copy(module._modules[form.activation], form.activation)  # type: ignore[arg-type]
    if form.dropout is not None:
        inside[form.dropout] = _Marked()
    copy = recorder.copy(module, _modules={**module._modules, **layers, **inside})
    x = torch.randn(_ROWS, _SIZE, generator=generator, device="cpu")
    x = (x * torch.logspace(-1, 1, _ROWS, device="cpu")[:, None]).to(dtype).requires_grad_()
    inputs = [x, *(layer.weight for name, layer in layers.items() if name != form.down)]
    product = form.reference(layers[form.gate](x), None if form.up is None else layers[form.up](x))
    computed = layers[form.down](product if form.dropout is None else _Marked()(product))
    results = in_both_modes(recorder, lambda: with_gradients(call(copy, layers, x), inputs, [computed]))
    yield from zip(with_gradients(computed, inputs), results, strict=True)
