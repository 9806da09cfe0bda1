"""Replaces the product of a gated MLP, activation(gate) * up, by `tridal.swiglu` or `tridal.geglu`, if it is the same.

A copy of the module with small random weights is compared. Its last layer is the identity, so it returns the product.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tridal.library.glu.functions import geglu, swiglu
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.models.comparison import FLIPS, NARROW, TOLERANCE, difference, find, in_both_modes
from tridal.models.reads import NOTHING, Reads, Recorder
from tridal.models.replacements import hooks_of, torch_computes
from tridal.ops import row_maths

Tensor = torch.Tensor
_SIZE, _ROWS = 32, 64
_CASTINGS = ("transformers", "")
_CPU = torch.device("cpu")
_DROPOUT = (
    torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout,
)  # fmt: skip


@dataclass(frozen=True)
class GluForm:
    """The gated MLP that a module computes. All names are those of modules inside."""

    approximate: str | None
    """The argument of `tridal.geglu`, or None for `tridal.swiglu`."""
    gate: str
    up: str | None
    """None if the layer `gate` computes both halves of one tensor."""
    down: str
    activation: str
    casting: str = ""
    reads: Reads = NOTHING

    def compute(self, module: Any, x: Any) -> Tensor | None:
        """Returns the module's output, or None if the module computes this input itself.

        Modules inside are called as before, except the activation. A compiler fuses the operations of the module's
        class as well, so compiled functions get them.
        """
        if torch.compiler.is_dynamo_compiling() or not isinstance(x, Tensor) or torch_computes(x.device):
            return None
        modules = module._modules
        activation = modules.get(self.activation)
        if activation is None or not _is_called(activation) or not self.reads.hold(module):
            return None
        product = self.product(modules[self.gate](x), None if self.up is None else modules[self.up](x))
        return modules[self.down](product)  # type: ignore[no-any-return]

    def product(self, gate: Tensor, up: Tensor | None) -> Tensor:
        """Returns activation(gate) * up."""
        casting: Any = self.casting or None
        if self.approximate is None:
            return swiglu(gate, up, casting=casting)
        return geglu(gate, up, approximate=self.approximate, casting=casting)  # type: ignore[arg-type]

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


def may_be_glu(module: torch.nn.Module) -> bool:
    """Returns whether a module has the parts of a gated MLP, and takes one tensor. The comparison decides what it is.

    Its parts are one activation, and linear layers: those of gate and up with the same sizes, or one for both.
    """
    if isinstance(module, torch.jit.ScriptModule) or module._parameters or not _activations(module):
        return False
    if len(_linears(module)) + 1 != len(module._modules) or not any(_roles(module)):
        return False
    parameters = [*inspect.signature(type(module).forward).parameters.values()][1:]
    return [p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == [inspect.Parameter.empty]


def _linears(module: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    return {name: child for name, child in module._modules.items() if isinstance(child, torch.nn.Linear)}


def _activations(module: torch.nn.Module) -> list[str]:
    """Returns the name of the only module inside that has no parameters and is no linear layer."""
    others = {name: child for name, child in module._modules.items() if not isinstance(child, torch.nn.Linear)}
    leaf = all(c is not None and not (c._modules or c._parameters or c._buffers) for c in others.values())
    dropout = any(isinstance(child, _DROPOUT) for child in others.values())
    return [*others] if len(others) == 1 and leaf and not dropout else []


def _roles(module: torch.nn.Module) -> Iterator[tuple[str, str | None, str]]:
    """Yields the names of the layers that may be gate, up and down; up is None if one layer computes both halves."""
    linears = _linears(module)
    for names in itertools.permutations(linears) if len(linears) in (2, 3) else ():
        first, down = linears[names[0]], linears[names[-1]]
        if len(names) == 2 and first.out_features == 2 * down.in_features:
            yield names[0], None, names[1]
        if len(names) == 3 and first.weight.shape == linears[names[1]].weight.shape == down.weight.shape[::-1]:
            yield names


def find_form(module: torch.nn.Module) -> GluForm | str:
    """Returns the gated MLP that a module computes, or why it is none. The module is not called."""
    return find("gated MLP", _compare, module, _CPU)


def _compare(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> GluForm | str:
    (activation,) = _activations(module)
    forms = [
        GluForm(approximate, *names, activation)
        for names, approximate in itertools.product(_roles(module), (None, "none", "tanh"))
    ]
    results = {form: _results(recorder, module, form, torch.float64) for form in forms}
    errors = {form: max(map(difference, *pair)) for form, pair in results.items()}
    form = min(errors, key=lambda form: errors[form])
    if not errors[form] <= TOLERANCE:
        return f"it differs from the nearest product, {form}, by {errors[form]:.1e}"
    for casting in _CASTINGS:
        rounded = replace(form, casting=casting)
        pairs = (_results(recorder, module, rounded, dtype) for dtype in NARROW)
        if all(_flips(got[0], wanted[0]) <= FLIPS for got, wanted in pairs):
            return rounded
    return f"it differs from {form} in 16-bit dtypes: the order of rounding differs"


def _results(
    recorder: Recorder, module: torch.nn.Module, form: GluForm, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the product and its gradients, computed by the op's reference and by a copy of the module."""
    generator = torch.Generator("cpu").manual_seed(0)

    def linear(name: str, outputs: int) -> torch.nn.Linear:
        made = torch.nn.Linear(_SIZE, outputs, bias=False, device="meta")  # draws no numbers of the program's generator
        random = torch.randn(outputs, _SIZE, generator=generator, device="cpu") / _SIZE**0.5
        made.weight = torch.nn.Parameter((torch.eye(_SIZE, device="cpu") if name == form.down else random).to(dtype))
        return made

    sizes = {name: _SIZE * (1 + (name == form.gate and form.up is None)) for name in _linears(module)}
    layers = {name: linear(name, size) for name, size in sizes.items()}
    original: Any = module._modules[form.activation]
    inside = recorder.copy(original, form.activation)
    copy = recorder.copy(module, _modules={**module._modules, **layers, form.activation: inside})
    x = torch.randn(_ROWS, _SIZE, generator=generator, device="cpu")
    x = (x * torch.logspace(-1, 1, _ROWS, device="cpu")[:, None]).to(dtype).requires_grad_()
    weights = [layer.weight for name, layer in layers.items() if name != form.down]
    computed = form.reference(layers[form.gate](x), None if form.up is None else layers[form.up](x))

    def with_gradients(y: Tensor) -> list[Tensor]:
        if y.shape != computed.shape or y.dtype is not computed.dtype:
            raise TypeError(f"it returned {y.dtype} of shape {list(y.shape)}")
        return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, *weights))]

    expected: Any = in_both_modes(recorder, lambda: with_gradients(copy(x)))
    return with_gradients(computed), expected


def _flips(got: Tensor, wanted: Tensor) -> float:
    """Returns the share of elements that differ. Small ones do not count: torch's gelu has no exact digits there."""
    return float((got != wanted)[wanted.abs() > 1e-3].double().mean())
