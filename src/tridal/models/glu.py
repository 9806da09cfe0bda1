"""Replaces the product of gated MLPs and experts, activation(gate) * up, by `tridal.swiglu` or `tridal.geglu`.

A copy of the module with small random weights is compared. Its last layer is a permutation, so it returns the product.
Its dropout is replaced by fixed factors, and is called as before in the module. transformers multiplies the weights of
all experts at once, and calls a method of their class for the product. This method is compared. The experts are not
called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tridal.library.glu.functions import geglu, swiglu
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.models.comparison import Pair, error, find, find_casting, in_both_modes, nearest, with_gradients
from tridal.models.glu_parts import Roles, find_parts, parts_of, roles_of
from tridal.models.reads import NOTHING, Reads, Recorder
from tridal.models.replacements import Replacement, hooks_of, torch_computes
from tridal.ops import row_maths

Tensor = torch.Tensor
_SIZE, _ROWS = 32, 64  # enough 16-bit elements to see another order of rounding
_METHOD = "_apply_gate"
"""transformers' name of the method for the product of experts."""
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
        gate, down = (module._modules[name] for name in (self.gate, self.down))
        if not self.computes(module, x) or _weight_dtype(gate) is not _weight_dtype(down):
            return None  # the class may cast the product to the dtype of the last layer, as T5 does
        up = None if self.up is None else module._modules[self.up]
        return down(self.product(module, gate(x), None if up is None else up(x)))  # type: ignore[no-any-return]

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
        """Returns the product, computed by the op's reference in torch's ops."""
        if up is None:
            gate, up = gate.chunk(2, -1)
        op, numbers = (SWIGLU, ()) if self.approximate is None else (GEGLU, (self.approximate,))
        result = row_maths.compute(op, gate, up, -1, gate.dtype, *numbers, self.casting)[0]
        assert result is not None
        return result

    def __str__(self) -> str:
        name = "tridal.swiglu" if self.approximate is None else f"tridal.geglu, approximate={self.approximate!r}"
        return f"{name}, casting={self.casting!r}" if self.casting else name


class Experts(Replacement):
    """The product of experts. The class multiplies with the weights of the experts."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the class's forward, which calls `_apply_gate`."""
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def _apply_gate(self, gate_up: Tensor) -> Any:
        form = self._tridal_form
        if form is None or not form.computes(self, gate_up):
            return super()._apply_gate(gate_up)  # type: ignore[misc]
        return form.product(self, gate_up, None)


def _is_called(activation: Any) -> bool:
    """Returns whether a call of an activation is a call of its class's forward: no hook reads or changes the result."""
    return not hooks_of(activation) and getattr(activation.forward, "__func__", None) is type(activation).forward


def _weight_dtype(layer: Any) -> torch.dtype | None:
    return getattr(getattr(layer, "weight", None), "dtype", None)


def find_form(module: torch.nn.Module) -> GluForm | str:
    """Returns the gated MLP that a module computes, or why it is none. The module is not called."""
    parts = find_parts(module)
    return parts if isinstance(parts, str) else find("gated MLP", _compare, module, torch.device("cpu"))


def find_form_of_experts(module: Any) -> GluForm | str:
    """Returns the product of both halves that experts compute, or why they compute another one."""
    implementation = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if not hasattr(type(module), _METHOD) or not getattr(module, "has_gate", False):
        return (
            f"tridal computes the product of experts whose class has the method {_METHOD} of transformers, and a gate"
        )
    if implementation == "eager":
        return f"its experts_implementation is 'eager', which does not call {_METHOD}"
    parts = parts_of(module)
    return parts if isinstance(parts, str) else find("experts", _compare_experts, module, torch.device("cpu"))


def _compare(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> GluForm | str:
    return _find_product(recorder, module, roles_of(module), lambda copy, layers, x: copy(x))


def _compare_experts(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> GluForm | str:
    def call(copy: Any, layers: dict[str, Any], x: Tensor) -> Tensor:
        return layers["down"](copy._apply_gate(layers["gate_up"](x)))  # type: ignore[no-any-return]

    return _find_product(recorder, module, [("gate_up", None, "down")], call)


def _find_product(recorder: Recorder, module: torch.nn.Module, roles: Iterable[Roles], call: Call) -> GluForm | str:
    """Returns the gated MLP that calls of copies of a module compute, with layers in one of several roles."""
    parts: Any = parts_of(module)
    forms = [GluForm(approximate, *names, *parts) for names in roles for approximate in (None, "none", "tanh")]

    def pairs(form: GluForm, dtype: torch.dtype) -> Iterator[Pair]:
        return _pairs(recorder, module, call, form, dtype)

    form = nearest("product", {form: [error(*pair) for pair in pairs(form, torch.float64)] for form in forms})
    casting = find_casting(lambda casting, dtype: [next(pairs(replace(form, casting=casting), dtype))])
    if casting is None:
        return f"it differs from {form} in 16-bit dtypes: the order of rounding differs"
    return replace(form, casting=casting)


class _Marked(torch.nn.Module):
    """Stands for a dropout in the comparison: doubles every other column, which is exact in all dtypes."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.arange(x.shape[-1], device=x.device) % 2).to(x.dtype)


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
    layers: dict[str, Any] = {
        name: linear(name, _SIZE * (1 + (name == form.gate and form.up is None))) for name in names
    }
    inside: dict[str, Any] = {} if form.dropout is None else {form.dropout: _Marked()}
    if form.activation is not None:
        inside[form.activation] = recorder.copy(module._modules[form.activation], form.activation)  # type: ignore[arg-type]
    copy = recorder.copy(module, _modules={**module._modules, **layers, **inside})
    x = torch.randn(_ROWS, _SIZE, generator=generator, device="cpu")
    x = (x * torch.logspace(-1, 1, _ROWS, device="cpu")[:, None]).to(dtype).requires_grad_()
    inputs = [x, *(layer.weight for name, layer in layers.items() if name != form.down)]
    product = form.reference(layers[form.gate](x), None if form.up is None else layers[form.up](x))
    computed = layers[form.down](product if form.dropout is None else _Marked()(product))
    results = in_both_modes(recorder, lambda: with_gradients(call(copy, layers, x), inputs, [computed]))
    yield from zip(with_gradients(computed, inputs), results, strict=True)
