"""Replaces the product of gated MLPs and experts, activation(gate) * up, by `tridal.swiglu` or `tridal.geglu`.

A copy of the module with small random weights is compared. Its last layer is a permutation, so it returns the product.
Its dropout is replaced by fixed factors, and is called as before in the module. transformers multiplies the weights of
all experts at once, and calls a method of their class for the product. This method is compared. The experts are not
called.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from tridal.library.glu.functions import geglu, swiglu
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.models.comparison import Pair, error, find, find_casting, in_both_modes, nearest, with_gradients
from tridal.models.reads import Form, Recorder, names_in, own_forward
from tridal.models.replacements import Replacement, hooks_of
from tridal.ops import row_maths

Tensor = torch.Tensor
NAME = re.compile("swiglu|geglu|gated_?(mlp|linear|dense|act|ffn|feed)", re.IGNORECASE)
"""A name of a class that says that it is a gated MLP."""
EXPERTS = re.compile("expert", re.IGNORECASE)
"""A name of a class for experts of a mixture."""
ACTIVATION = re.compile("gelu|silu|swish|glu|sigmoid|relu|(^|_)act(_|$|ivation)", re.IGNORECASE)
"""A name of an activation that a forward calls or reads."""
DROPOUT = (
    torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout, torch.nn.Identity,
)  # fmt: skip
_METHOD = "_apply_gate"
"""transformers' name of the method for the product of experts."""
_SIZE, _ROWS = 32, 64  # enough 16-bit elements to see another order of rounding
Roles = tuple[str, str | None, str]
"""The names of the layers gate, up and down. up is None if one layer computes both halves."""


class Parts(NamedTuple):
    """The names of the modules inside a gated MLP, without its layers."""

    activation: str | None
    """None if the forward calls a function."""
    dropout: str | None
    """The dropout of the product, or None."""


@dataclass(frozen=True)
class GluForm(Form):
    """The gated MLP that a module computes. All names are those of modules inside."""

    approximate: str | None
    """The argument of `tridal.geglu`, or None for `tridal.swiglu`."""
    roles: Roles
    parts: Parts
    casting: str = ""

    def compute(self, module: Any, x: Tensor) -> Tensor | None:
        """Calls the modules inside as the class does, except the activation."""
        gate, up, down = (module._modules.get(name) for name in self.roles)
        if _weight_dtype(gate) is not _weight_dtype(down):
            return None  # the class may cast the product to the dtype of the last layer, as T5 does
        return down(self.product(module, gate(x), None if up is None else up(x)))  # type: ignore[no-any-return]

    def computes(self, module: Any, x: Any) -> bool:
        """Whether tridal computes the product of a module for an input: no hook reads or changes the activation."""
        name = self.parts.activation
        activation = module._modules.get(name)
        called = name is None if activation is None else _is_called(activation)
        return called and super().computes(module, x)

    def product(self, module: Any, gate: Tensor, up: Tensor | None) -> Tensor:
        """Returns activation(gate) * up, after the dropout of the module."""
        casting: Any = self.casting or None
        if self.approximate is None:
            product = swiglu(gate, up, casting=casting)
        else:
            product = geglu(gate, up, approximate=self.approximate, casting=casting)  # type: ignore[arg-type]
        return product if self.parts.dropout is None else module._modules[self.parts.dropout](product)

    def reference(self, gate: Tensor, up: Tensor | None) -> Tensor:
        """Computes the product by the op's reference in torch's ops."""
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


def _layers_of(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    sizes = {name: (getattr(m, "out_features", None), getattr(m, "in_features", None)) for name, m in _inside(module)}
    return {name: pair for name, pair in sizes.items() if all(isinstance(size, int) for size in pair)}


def _inside(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _roles_of(module: torch.nn.Module) -> Iterator[Roles]:
    sizes = _layers_of(module)
    for names in itertools.permutations(sizes) if len(sizes) in (2, 3) else ():
        first, down = sizes[names[0]], sizes[names[-1]]
        if len(names) == 2 and first[0] == 2 * down[1]:
            yield names[0], None, names[1]
        if len(names) == 3 and first == sizes[names[1]] == down[::-1]:
            yield names


def may_be_glu(module: torch.nn.Module) -> bool:
    """Returns whether a module has the layers of a gated MLP and uses an activation, or is called a gated MLP.

    The layers of gate and up have the same sizes, or one layer computes both. `find_form` decides.
    """
    if not module._modules:
        return False
    if NAME.search(type(module).__name__):
        return bool(_layers_of(module))
    names = names_in(own_forward(module))
    return any(_roles_of(module)) and (bool(_others(module)[0]) or any(map(ACTIVATION.search, names)))


def may_be_experts(module: torch.nn.Module) -> bool:
    """Returns whether a module has the weights of several experts: tensors with a dim of experts."""
    own = (parameter for parameter in module._parameters.values() if parameter is not None)
    return bool(EXPERTS.search(type(module).__name__)) and any(parameter.dim() > 1 for parameter in own)


def _others(module: torch.nn.Module) -> tuple[list[str], list[str], list[str]]:
    """Returns the names of the modules that may be an activation, of those that may be a dropout, and of all others."""
    layers = _layers_of(module)
    names: tuple[list[str], list[str], list[str]] = [], [], []
    for name, child in _inside(module):
        if name not in layers:
            leaf = not (child._modules or child._parameters or child._buffers)
            names[1 if isinstance(child, DROPOUT) else 0 if leaf else 2].append(name)
    return names


def _parts_of(module: torch.nn.Module) -> Parts | str:
    """Returns the modules inside that are no layers, or why they are not those of a gated MLP."""
    activations, dropouts, others = _others(module)
    if others or len(activations) > 1 or len(dropouts) > 1:
        inside = ", ".join(name for name in module._modules if name in (*others, *activations, *dropouts))
        return f"it has the modules {inside} beside its layers, and a gated MLP has one activation without parameters"
    return Parts(next(iter(activations), None), next(iter(dropouts), None))


def find_form(module: torch.nn.Module) -> GluForm | str:
    """Returns the gated MLP that a module computes, or why it is none. The module is not called."""
    if module._parameters:  # buffers matter only if the forward reads them
        own = ", ".join(module._parameters)
        return f"it has parameters of its own ({own}), and a gated MLP has only those of its layers"
    roles = tuple(_roles_of(module))
    if not roles:
        return "it has no linear layers with the sizes of gate, up and down"
    taken = [*inspect.signature(type(module).forward).parameters.values()][1:]
    if [p.default for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD] != [inspect.Parameter.empty]:
        return f"its forward takes ({', '.join(p.name for p in taken)}), and a gated MLP takes one tensor"
    return _find("gated MLP", module, roles, _call)


def find_form_of_experts(module: Any) -> GluForm | str:
    """Returns the product of both halves that experts compute, or why they compute another one."""
    implementation = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if not hasattr(type(module), _METHOD) or not getattr(module, "has_gate", False):
        return (
            f"tridal computes the product of experts whose class has the method {_METHOD} of transformers, and a gate"
        )
    if implementation == "eager":
        return f"its experts_implementation is 'eager', which does not call {_METHOD}"
    return _find("experts", module, (("gate_up", None, "down"),), _call_experts)


def _find(kind: str, module: torch.nn.Module, roles: tuple[Roles, ...], call: Callable[..., Tensor]) -> GluForm | str:
    parts = _parts_of(module)
    return parts if isinstance(parts, str) else find(kind, _compare, module, torch.device("cpu"), roles, parts, call)


def _call(copy: Any, layers: dict[str, Any], x: Tensor) -> Tensor:
    return copy(x)  # type: ignore[no-any-return]


def _call_experts(copy: Any, layers: dict[str, Any], x: Tensor) -> Tensor:
    return layers["down"](copy._apply_gate(layers["gate_up"](x)))  # type: ignore[no-any-return]


def _compare(
    recorder: Recorder, device: torch.device, roles: tuple[Roles, ...], parts: Parts, call: Callable[..., Tensor]
) -> GluForm | str:
    """Returns the gated MLP that calls of copies of a module compute, with layers in one of several roles."""
    forms = [GluForm(approximate, names, parts) for names in roles for approximate in (None, "none", "tanh")]

    def pairs(form: GluForm, dtype: torch.dtype) -> Iterator[Pair]:
        return _pairs(recorder, call, form, dtype)

    form = nearest("product", {form: [error(*pair) for pair in pairs(form, torch.float64)] for form in forms})
    casting = find_casting(lambda casting, dtype: [next(pairs(replace(form, casting=casting), dtype))])
    if casting is None:
        return f"it differs from {form} in 16-bit dtypes: the order of rounding differs"
    return replace(form, casting=casting)


class _Marked(torch.nn.Module):
    """Stands for a dropout in the comparison: doubles every other column, which is exact in all dtypes."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.arange(x.shape[-1], device=x.device) % 2).to(x.dtype)


def _pairs(recorder: Recorder, call: Callable[..., Tensor], form: GluForm, dtype: torch.dtype) -> Iterator[Pair]:
    """Yields the product and its gradients, computed by the op's reference and by a copy of the module."""
    generator = torch.Generator("cpu").manual_seed(0)
    gate, up, down = form.roles
    activation, dropout = form.parts

    def linear(name: str) -> torch.nn.Linear:
        outputs = _SIZE * (1 + (name == gate and up is None))
        made = torch.nn.Linear(_SIZE, outputs, bias=False, device="meta")  # draws no numbers of the program's generator
        random = torch.randn(outputs, _SIZE, generator=generator, device="cpu") / _SIZE**0.5
        swapped = torch.eye(_SIZE, device="cpu").roll(1, 0)  # is exact, and shows what is done after the last layer
        made.weight = torch.nn.Parameter((swapped if name == down else random).to(dtype))
        return made

    layers: dict[str, Any] = {name: linear(name) for name in form.roles if name is not None}
    inside: dict[str, Any] = {} if dropout is None else {dropout: _Marked()}
    if activation is not None:
        inside[activation] = recorder.copy(activation)
    copy = recorder.copy(_modules={**recorder.module._modules, **layers, **inside})
    x = torch.randn(_ROWS, _SIZE, generator=generator, device="cpu")
    x = (x * torch.logspace(-1, 1, _ROWS, device="cpu")[:, None]).to(dtype).requires_grad_()
    inputs = [x, *(layer.weight for name, layer in layers.items() if name != down)]
    product = form.reference(layers[gate](x), None if up is None else layers[up](x))
    computed = layers[down](product if dropout is None else _Marked()(product))
    results = in_both_modes(recorder, lambda: with_gradients(call(copy, layers, x), inputs, [computed]))
    yield from zip(with_gradients(computed, inputs), results, strict=True)
