"""The comparison of norm classes: which norm, eps, offset and casting are found, and which classes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal

Tensor = torch.Tensor
LLAMA = "tridal.rms_norm, casting='llama'"
GEMMA = "tridal.rms_norm, casting='gemma'"
NEAREST = "it differs from the nearest norm, tridal."


class OwnRMSNorm(torch.nn.Module):
    """A norm with a weight, whose forward is a function of (module, x)."""

    def __init__(self, compute: Callable[..., Tensor], size: int = 16) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def normalized(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def decision_of(module: torch.nn.Module) -> tuple[str | None, str | None]:
    """Returns what replaces a module, and the reason. The module is as before."""
    with tridal.kernelize(module) as report:
        (entry,) = report.entries
        return entry.replaced_by, entry.reason


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda m, x: m.weight * normalized(x.float()).to(x.dtype), LLAMA),
        (lambda m, x: (m.weight * normalized(x.float())).to(x.dtype), GEMMA),
        (
            lambda m, x: ((1 + m.weight.float()) * normalized(x.float())).to(x.dtype),
            "tridal.rms_norm, weight_offset=1, casting='gemma'",
        ),
        (lambda m, x: torch.nn.functional.layer_norm(x, x.shape[-1:], m.weight), "tridal.layer_norm"),
        (lambda m, x: m.weight * normalized(x.float(), 1e-5).to(x.dtype), LLAMA),
    ],
    ids=["llama", "gemma without offset", "gemma", "layer norm", "eps in the code"],
)
def test_function_and_order_of_rounding_are_found(compute: Any, expected: str) -> None:
    assert decision_of(OwnRMSNorm(compute).eval())[0] == expected


def mean_of(dims: Callable[[Tensor], Any], weight: Callable[[Any, Tensor], Tensor] = lambda m, x: m.weight) -> Any:
    """Returns a norm over some dims of an input."""
    return lambda m, x: x * torch.rsqrt(x.pow(2).mean(dims(x), keepdim=True) + 1e-6) * weight(m, x)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda m, x: m.weight * x / x.norm(dim=-1, keepdim=True), NEAREST),
        (lambda m, x: m.weight * normalized(x, 1e-3), f"{NEAREST}rms_norm"),
        (lambda m, x: m.weight * normalized(x).detach(), "it differs from tridal.rms_norm: the gradient of x"),
        (lambda m, x: m.weight.detach() * normalized(x), "it differs from tridal.rms_norm: the gradient of weight"),
        (lambda m, x: m.no_such_name, "this form of norm is not supported: the comparison raised AttributeError: "),
        (lambda m, x: (x, x), "this form of norm is not supported: the comparison raised TypeError: it returned tuple"),
        (lambda m, x: x[..., :1], NEAREST),
        (lambda m, x: m.weight * x * float("nan"), NEAREST),
        (mean_of(lambda x: tuple(range(1, x.dim()))), "it does not normalize the last dims of an input of 3 dims"),
        (
            mean_of(lambda x: 1, lambda m, x: m.weight.view(-1, *[1] * (x.dim() - 2))),
            "its forward raised RuntimeError for an input of 3 dims",
        ),
        (mean_of(lambda x: 1 if x.dim() == 4 else -1), "it does not normalize the last dims of an input of 4 dims"),
    ],
    ids=[
        "l2", "other eps", "no gradient", "no gradient of weight", "error", "tuple", "shape", "nan", "all dims",
        "channels", "channels of images",
    ],
)  # fmt: skip
def test_class_that_computes_something_else_has_a_reason(compute: Any, reason: str) -> None:
    by, found = decision_of(OwnRMSNorm(compute).eval())
    assert by is None
    assert str(found).startswith(reason)


def test_dtypes_with_another_order_of_rounding_are_left_to_the_class(device: torch.device) -> None:
    """The number of a row is rounded before the multiplication."""

    def norm(m: Any, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * m.weight

    module = OwnRMSNorm(norm).to(device).bfloat16()
    x = torch.randn(2, 16, dtype=torch.bfloat16, device=device)
    expected = module(x)
    with tridal.kernelize(module) as report, tridal.record_calls() as calls:
        assert torch.equal(module(x), expected)
        module.float()(x.float())
    assert [call.op for call in calls] == ["rms_norm"]
    assert "it computes these itself: bfloat16 inputs (the order of rounding differs: " in str(report.entries[0].reason)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_a_rounded_sum_of_one_and_the_weight_is_added_by_torch(device: torch.device, kind: str) -> None:
    def norm(m: Any, x: Tensor) -> Tensor:
        if kind == "layer_norm":
            return torch.nn.functional.layer_norm(x, x.shape[-1:], m.weight + 1)
        return ((1 + m.weight).float() * normalized(x.float())).to(x.dtype)

    module = OwnRMSNorm(norm).to(device).half()
    x = torch.randn(64, 16, dtype=torch.float16, device=device)
    with torch.no_grad():
        module.weight.copy_(torch.randn(16) / 16)
    inputs = (x.requires_grad_(), module.weight)
    expected = torch.autograd.grad(module(x).sum(), inputs)
    with tridal.kernelize(module) as report, tridal.record_calls() as calls:
        assert report.entries[0].replaced_by == f"tridal.{kind}, weight_offset=1" + ", casting='gemma'" * (
            kind[0] == "r"
        )
        assert_close(torch.autograd.grad(module(x).sum(), inputs), expected, rtol=2**-8, atol=2**-8)
        found = module(x)
    assert {call.op for call in calls} == {kind, f"{kind}_backward"}
    assert (found != module(x)).double().mean() < 0.02


def test_modules_with_other_settings_are_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(m: Any, x: Tensor) -> Tensor:
        return normalized(x) * (m.weight + m._offset) * m.factor

    def find(offset: float, factor: float) -> Any:
        module: Any = OwnRMSNorm(scaled)
        module._offset, module.factor = offset, factor
        return decision_of(module)

    found = [find(*numbers)[0] for numbers in ((0.0, 1.0), (1.0, 1.0), (0.0, 3.0))]
    assert found == ["tridal.rms_norm", "tridal.rms_norm, weight_offset=1", None]
    monkeypatch.setattr(OwnRMSNorm, "forward", lambda self, x: 2 * scaled(self, x))
    assert find(0.0, 1.0)[0] is None


def test_a_parameter_that_became_an_attribute_is_used(device: torch.device) -> None:
    """FSDP replaces the parameters of a module by views while it computes."""
    module: Any = OwnRMSNorm(lambda m, x: m.weight * normalized(x)).to(device)
    x = torch.randn(2, 16, device=device)
    handle = module.register_forward_hook(lambda *_: pytest.fail("the comparison calls the module"))
    tridal.kernelize(module)
    handle.remove()
    assert module.weight.grad is None
    del module._parameters["weight"]
    module.weight = torch.full((16,), 3.0, device=device)
    with tridal.record_calls() as calls:
        assert_close(module(x), 3 * normalized(x))
    assert [call.op for call in calls] == ["rms_norm"]
