"""kernelize of norm(x) * (1 + scale) + shift in a forward: forms of it, what stays, changes afterwards, and modes."""

from __future__ import annotations

import copy
import linecache
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tridal
from model_helpers import ops_of
from tridal.models.forwards import definition
from tridal.models.modulations import _norms_of as modulated_norms

Tensor = torch.Tensor
SIZE = 36
"""A width that is no multiple of 16."""


class Block(nn.Module):
    """Two norms, and a layer that computes scales and shifts."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.silu, self.linear = nn.SiLU(), nn.Linear(SIZE, 4 * SIZE)
        self.norm, self.norm2 = norm(SIZE), norm(SIZE)
        self.kind = "zero"


class Zero(Block):
    def forward(self, x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale, gate, _ = self.linear(self.silu(emb)).chunk(4, dim=1)
        x = self.norm(x) * (1 + scale[:, None]) + shift[:, None]
        return x, gate


class Continuous(Block):
    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        scale, shift, *_ = torch.chunk(self.linear(emb).to(x.dtype), 4, dim=1)
        return shift.unsqueeze(1) + (scale + 1.0).unsqueeze(1) * self.norm(x) + self.norm2(x) * (1 + scale)[:, None, :]


class Variables(Block):
    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        values = self.linear(emb)[:, None]
        normed = self.norm(x)
        scale, shift, scale2, shift2 = values.chunk(4, dim=-1)
        other = self.norm2(x)
        first = normed * (1 + scale) + shift
        normed = normed * (1 + scale2) + shift2
        other = (1 + scale) * other + shift
        if self.kind == "zero":
            normed = normed + first
        return normed + other


class RmsZero(Zero):
    """The forward has variables of a closure."""

    def __init__(self) -> None:
        super().__init__(lambda size: nn.RMSNorm(size, elementwise_affine=False))

    def forward(self, x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor]:
        y, gate = super().forward(x, emb)
        return y + self.norm(y) * (1 + gate[:, None]), gate


class Other(Block):
    """The norm is also used without a scale."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        scale, *_ = emb.chunk(1, dim=1)
        normed = self.norm(x)
        y = normed * (1 + scale[:, None])
        normed = normed + y
        return normed + x


class Changed(Block):
    """The input changes before the modulation."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        x = x.clone()
        normed = self.norm(x)
        x[:, 0] = 1.0
        normed = normed * (1 + emb[:, None])
        return normed + x


class Branch(Block):
    """Only one branch modulates."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        normed = self.norm(x)
        if self.kind == "zero":
            normed = normed * (1 + emb[:, None])
        return normed


class Untaken(Block):
    """The module does not take the branch with a modulation."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        if self.kind in ("single", "continuous"):
            return self.norm(x) * (1 + emb[:, None])
        return x


class Lambda(Block):
    """A function inside modulates."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        normed = self.norm(x)
        return (lambda: normed * (1 + emb[:, None]))()


FORMS: dict[str, tuple[Callable[[], Block], tuple[str, ...]]] = {
    "zero": (Zero, ("norm",)), "continuous": (Continuous, ("norm", "norm2")), "rms": (RmsZero, ("norm",)),
    "variables": (Variables, ("norm", "norm2")),
}  # fmt: skip
LEFT = (Other, Changed, Branch, Untaken, Lambda)


def inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x, emb = torch.randn(2, 9, SIZE, device=device), torch.randn(2, SIZE, device=device)
    return x.to(dtype).requires_grad_(), emb.to(dtype).requires_grad_()


def results(module: Block, given: tuple[Tensor, ...]) -> list[Tensor]:
    """Returns the output, and the gradients of inputs and parameters."""
    y = module(*given)
    y = y[0] if isinstance(y, tuple) else y
    wanted = [*given, *module.parameters()]
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(y.shape, generator=generator).to(y)
    found = torch.autograd.grad(y, wanted, grad, allow_unused=True)
    return [y.detach(), *(g for g in found if g is not None)]


def modulates(module: Block, given: tuple[Tensor, ...]) -> bool:
    return any("modulated" in op for op in ops_of(lambda: module(*given)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_results_gradients_and_the_order_of_rounding_are_those_of_the_class(
    device: torch.device, form: str, dtype: torch.dtype
) -> None:
    make, names = FORMS[form]
    module, given = make().to(device, dtype), inputs(device, dtype)
    expected = results(module, given)
    report = tridal.kernelize(module)
    found = results(module, given)
    entry = next(entry for entry in report.replaced if not entry.name)
    assert (entry.replaced_by or "").endswith(f"casting='llama' for {', '.join(names)}")
    assert modulates(module, given)
    if dtype is torch.float16:
        assert float((found[0] != expected[0]).double().mean()) < 0.02
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=1e-2 if dtype is torch.float16 else 1e-4, atol=float(b.abs().max()) * 1e-2)
    report.restore()
    assert not modulates(module, given)


@pytest.mark.parametrize("kind", LEFT)
def test_other_uses_of_a_norm_are_left(device: torch.device, kind: type[Block]) -> None:
    module, given = kind().to(device), inputs(device)
    expected = module(*given)
    assert modulated_norms(module) == ()
    report = tridal.kernelize(module)
    assert all(entry.name for entry in report.entries)
    assert_close(module(*given), expected)


class Doubled(nn.LayerNorm):
    """A norm with the attributes of another one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


CHANGES: dict[str, Callable[[Any], object]] = {
    "hook": lambda m: m.norm.register_forward_hook(lambda _m, _x, y: 2 * y),
    "eps": lambda m: setattr(m.norm, "eps", 0.5),
    "another module": lambda m: setattr(m, "norm", Doubled(SIZE, device=m.linear.weight.device)),
    "forward of an instance": lambda m: setattr(m.norm, "forward", torch.tanh),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_norm_is_computed_by_the_class(device: torch.device, change: str) -> None:
    module, given = Zero().to(device), inputs(device)
    plain = copy.deepcopy(module)
    tridal.kernelize(module)
    for changed in (plain, module):
        CHANGES[change](changed)
    assert_close(module(*given)[0], plain(*given)[0])
    assert not modulates(module, given)


def test_other_dtypes_and_shapes_are_computed_by_the_class(device: torch.device) -> None:
    class Given(Block):
        def forward(self, x: Tensor, scale: Any, shift: Any) -> Tensor:
            return self.norm(x) * (1 + scale) + shift

    module, (x, _) = Given().to(device).half(), inputs(device, torch.float16)
    plain = copy.deepcopy(module)
    tridal.kernelize(module)
    wide = torch.randn(2, 1, SIZE, device=device)
    assert modulates(module, (x, wide.half(), wide.half()))
    for scale, shift in ((wide, wide), (wide.half(), wide), (wide[0].half(), wide.half()), (2.0, 1), (x[..., :1], x)):
        assert not modulates(module, (x, scale, shift))
        assert_close(module(x, scale, shift), plain(x, scale, shift))


def test_autocast_compiled_functions_copies_and_pickles(device: torch.device) -> None:
    module = Variables(lambda size: nn.LayerNorm(size, elementwise_affine=False)).to(device)
    given = inputs(device)
    expected, copied = module(*given), copy.deepcopy(module)
    tridal.kernelize(module)
    with torch.autocast(device.type, torch.bfloat16):
        assert ops_of(lambda: module(*given)) == {"modulated_layer_norm"}
        assert_close(module(*given), copied(*given), rtol=2e-2, atol=2e-2)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert ops_of(lambda: compiled(*given)) == {"layer_norm"}  # the compiler gets the code of the class
    assert_close(compiled(*given), expected)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert modulates(other, given)
        assert_close(other(*given), expected)


def test_source_that_is_not_that_of_the_code_is_not_used(tmp_path: Any) -> None:
    """A file that changed after its import, and a function without a file."""
    source = "class Late(Block):\n    def forward(self, x, emb):\n        return self.norm(x) * (1 + emb[:, None])\n"
    names: dict[str, Any] = {"Block": Block, "__name__": __name__}
    for file, changed, found in (
        ("a.py", "", True), ("b.py", "- 0", False), ("c.py", None, False), ("d.py", "+ emb", False),
    ):  # fmt: skip
        path = tmp_path / file
        exec(compile(source, str(path), "exec"), names)
        if changed is not None:
            path.write_text(source.replace("None])", f"None]){changed}"))
        linecache.checkcache()
        assert (definition(names["Late"].forward) is not None) is found
        assert bool(modulated_norms(names["Late"]())) is found
