"""Compares gated MLPs and experts with `tridal.swiglu` and `tridal.geglu`.

A copy of the module with small random weights is called. Its last layer is a permutation, so it returns the product.
Its dropout is replaced by fixed factors, and is called as before in the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from tridal.library.glu.functions import geglu, swiglu
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.models import activations
from tridal.models.comparison import Pair, error, find_casting, in_both_modes, nearest, with_gradients
from tridal.models.reads import Form, Recorder
from tridal.models.replacements import is_called
from tridal.ops import row_math

Tensor = torch.Tensor
_TOLERANCE = 1e-4
"""The largest error of float64 tensors, whose product some modules compute in float32."""
SIZE, _ROWS = 32, 64  # enough 16-bit elements to see another order of rounding
Roles = tuple[str | None, str | None, str | None]
"""The names of the layers gate, up and down. up is None if one layer computes both halves.

down is None if the module returns the product. gate is None if it also has no layer for both halves.
"""


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
    swapped: bool = False
    """Whether the gate is the second half, if one layer computes both."""
    limit: float | None = None
    """The argument of `tridal.swiglu`."""

    def compute(self, module: Any, x: Tensor) -> Tensor | None:
        """Calls the modules inside as the class does, except the activation."""
        gate, up, down = (None if name is None else module._modules[name] for name in self.roles)
        if down is not None and _weight_dtype(gate) is not _weight_dtype(down):
            return None  # the class may cast the product to the dtype of the last layer, as T5 does
        return _call(down, self.product(module, _call(gate, x), None if up is None else up(x)))  # type: ignore[no-any-return]

    def computes(self, module: Any, x: Any) -> bool:
        """Whether tridal computes the product of a module for an input: no hook reads or changes the activation."""
        name = self.parts.activation
        activation = module._modules.get(name)
        called = name is None if activation is None else is_called(activation)
        return called and super().computes(module, x)

    def product(self, module: Any, gate: Tensor, up: Tensor | None) -> Tensor:
        """Returns activation(gate) * up, after the dropout of the module."""
        casting: Any = self.casting or None
        if self.swapped:
            up, gate = gate.chunk(2, -1)
        if self.approximate is None:
            product = swiglu(gate, up, casting=casting, limit=self.limit)
        else:
            product = geglu(gate, up, approximate=self.approximate, casting=casting)  # type: ignore[arg-type]
        return product if self.parts.dropout is None else module._modules[self.parts.dropout](product)

    def reference(self, gate: Tensor, up: Tensor | None) -> Tensor:
        """Computes the product by the op's reference in torch's ops."""
        if up is None:
            halves = gate.chunk(2, -1)
            gate, up = halves[::-1] if self.swapped else halves
        op, number = (SWIGLU, self.limit) if self.approximate is None else (GEGLU, self.approximate)
        result = row_math.compute(op, gate, up, -1, gate.dtype, number, self.casting)[0]
        assert result is not None
        return result

    def __str__(self) -> str:
        name = "tridal.swiglu" if self.approximate is None else f"tridal.geglu, approximate={self.approximate!r}"
        limit = "" if self.limit is None else f", limit={self.limit}"
        return f"{name}{limit}, casting={self.casting!r}" if self.casting else f"{name}{limit}"


def _call(layer: Any, x: Any) -> Any:
    return x if layer is None else layer(x)


def _weight_dtype(layer: Any) -> torch.dtype | None:
    return getattr(getattr(layer, "weight", None), "dtype", None)


def compare(
    recorder: Recorder, device: torch.device, roles: tuple[Roles, ...], parts: Parts, call: Callable[..., Tensor]
) -> GluForm | str:
    """Returns the gated MLP that calls of copies of a module compute, with layers in one of several roles."""
    named = (value for name, value in vars(recorder.module).items() if "limit" in name)
    limits = [float(value) for value in named if type(value) in (int, float) and 0 < value < math.inf]
    kinds = [*((None, limit) for limit in (*limits, None)), ("none", None), ("tanh", None)]
    forms = [
        GluForm(approximate, names, parts, swapped=swapped, limit=limit)
        for names, (approximate, limit), swapped in product(roles, kinds, (False, True))
        if names[1] is None or not swapped
    ]

    def pairs(form: GluForm, dtype: torch.dtype, once: bool = False) -> Iterator[Pair]:
        return _pairs(recorder, call, form, dtype, once)

    exact = {form: [error(*pair) for pair in pairs(form, torch.float64)] for form in forms}
    form = nearest("product", exact, _TOLERANCE)

    def results(once: bool, casting: str, dtype: torch.dtype) -> list[Pair]:
        return [next(pairs(replace(form, casting=casting), dtype, once))]

    for once in (False, True) if _rounds_once_later(recorder.module, form) else (False,):
        if (casting := find_casting(partial(results, once))) is not None:
            return replace(form, casting=casting)
    return f"it differs from {form} in 16-bit dtypes: the order of rounding differs"


def _rounds_once_later(module: Any, form: GluForm) -> bool:
    """Whether kernelize replaces the activation by torch's function. It rounds once, where the class rounds often."""
    name = form.parts.activation
    found = None if name is None else activations.find_form(module._modules[name])
    return isinstance(found, activations.ActivationForm)


class _Once(torch.nn.Module):
    """Stands for an activation that kernelize replaces by torch's function."""

    def __init__(self, approximate: str | None) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        f = torch.nn.functional
        return f.silu(x) if self.approximate is None else f.gelu(x, approximate=self.approximate)


class _Marked(torch.nn.Module):
    """Stands for a dropout in the comparison: doubles every other column, which is exact in all dtypes."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.arange(x.shape[-1], device=x.device) % 2).to(x.dtype)


def _pairs(
    recorder: Recorder, call: Callable[..., Tensor], form: GluForm, dtype: torch.dtype, once: bool
) -> Iterator[Pair]:  # fmt: skip
    """Yields the product and its gradients, computed by the op's reference and by a copy of the module.

    The activation of the copy rounds once if asked for.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    gate, up, down = form.roles
    activation, dropout = form.parts

    def linear(name: str) -> torch.nn.Linear:
        outputs = SIZE * (1 + (name == gate and up is None))
        made = torch.nn.Linear(SIZE, outputs, bias=False, device="meta")  # draws no numbers of the program's generator
        random = torch.randn(outputs, SIZE, generator=generator, device="cpu") / SIZE**0.5
        swapped = torch.eye(SIZE, device="cpu").roll(1, 0)  # is exact, and shows what is done after the last layer
        made.weight = torch.nn.Parameter((swapped if name == down else random).to(dtype))
        return made

    layers: dict[str | None, Any] = {name: linear(name) for name in form.roles if name is not None}
    inside: dict[str, Any] = {} if dropout is None else {dropout: _Marked()}
    if activation is not None:
        inside[activation] = _Once(form.approximate) if once else recorder.copy(activation)
    copy = recorder.copy(_modules={**recorder.module._modules, **layers, **inside})
    x = torch.randn(_ROWS, SIZE * (1 + (gate is None)), generator=generator, device="cpu")
    x = (x * torch.logspace(-1, 1, _ROWS, device="cpu")[:, None]).to(dtype).requires_grad_()
    inputs = [x, *(layer.weight for name, layer in layers.items() if name != down)]
    expected = form.reference(_call(layers.get(gate), x), None if up is None else layers[up](x))
    computed = _call(layers.get(down), expected if dropout is None else _Marked()(expected))
    results = in_both_modes(recorder, lambda: with_gradients(call(copy, layers, x), inputs, [computed]))
    yield from zip(with_gradients(computed, inputs), results, strict=True)
