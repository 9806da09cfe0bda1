"""The comparison of norm classes: which norm, eps, offset and casting are found, and which classes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from tridal.models.norm_comparison import find_form
from tridal.models.norm_forms import NormForm, _parameter


class SomeNorm(torch.nn.Module):
    """A norm with a weight, whose forward is a function of (module, x)."""

    def __init__(self, compute: Callable[..., torch.Tensor], size: int = 16) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)


def normalised(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def form_of(compute: Callable[..., torch.Tensor], **kwargs: Any) -> Any:
    return find_form(SomeNorm(compute, **kwargs).eval())


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda m, x: m.weight * normalised(x.float()).to(x.dtype), "tridal.rms_norm, casting='llama'"),
        (lambda m, x: (m.weight * normalised(x.float())).to(x.dtype), "tridal.rms_norm, casting='gemma'"),
        (
            lambda m, x: ((1 + m.weight.float()) * normalised(x.float())).to(x.dtype),
            "tridal.rms_norm, weight_offset=1, casting='gemma'",
        ),
        (lambda m, x: torch.nn.functional.layer_norm(x, x.shape[-1:], m.weight), "tridal.layer_norm"),
        (lambda m, x: m.weight * normalised(x.float(), 1e-5).to(x.dtype), "tridal.rms_norm, casting='llama'"),
    ],
    ids=["llama", "gemma without offset", "gemma", "layer norm", "eps in the code"],
)
def test_function_and_order_of_rounding_are_found(compute: Any, expected: str) -> None:
    assert str(form_of(compute)) == expected


@pytest.mark.parametrize(
    ("compute", "problem"),
    [
        (lambda m, x: m.weight * x / x.norm(dim=-1, keepdim=True), "it differs from the nearest norm, tridal."),
        (lambda m, x: m.weight * normalised(x, 1e-3), "it differs from the nearest norm, tridal.rms_norm"),
        (lambda m, x: m.weight * normalised(x).detach(), "it differs from tridal.rms_norm: the gradient of x"),
        (lambda m, x: m.weight * normalised(x) * (0.5 if m.training else 1), "it computes something else in training"),
        (lambda m, x: m.no_such_name, "this form of norm is not supported: the comparison raised AttributeError: "),
        (lambda m, x: (x, x), "this form of norm is not supported: the comparison raised TypeError: it returned tuple"),
        (lambda m, x: x[..., :1], "it differs from the nearest norm"),
        (lambda m, x: m.weight * x * float("nan"), "it differs from the nearest norm"),
    ],
    ids=["l2", "other eps", "no gradient", "training", "error", "tuple", "shape", "nan"],
)
def test_class_that_computes_something_else_has_a_reason(compute: Any, problem: str) -> None:
    assert str(form_of(compute)).startswith(problem)


def test_dtypes_with_another_order_of_rounding_are_left_to_the_class() -> None:
    """The sum of 1 and a bfloat16 weight is rounded before the multiplication."""
    module = SomeNorm(lambda m, x: ((1 + m.weight).float() * normalised(x.float())).to(x.dtype)).bfloat16()
    form = find_form(module)
    assert isinstance(form, NormForm)
    assert isinstance(form.castings[torch.float32, torch.float32, False], tuple)
    assert isinstance(form.castings[torch.bfloat16, torch.bfloat16, False], str)
    (text,) = form.describe(module)
    assert text.startswith("it computes these itself: bfloat16 inputs (the order of rounding differs: ")
    x = torch.randn(2, 16, dtype=torch.bfloat16)
    assert form.compute(module, x) is None


def test_modules_with_other_settings_are_compared_again() -> None:
    first, second = torch.nn.RMSNorm(8, eps=1e-3), torch.nn.RMSNorm(8, eps=1e-5)
    for module in (first, second):
        form = find_form(module)
        assert isinstance(form, NormForm)
        x = torch.randn(3, 8) / 100
        torch.testing.assert_close(form.reference(module, x), module(x))
    assert find_form(torch.nn.RMSNorm(8, eps=1e-5)) == find_form(second)


def test_module_is_not_changed_or_called() -> None:
    module = torch.nn.LayerNorm(8)
    module.register_forward_hook(lambda *_: pytest.fail("the module was called"))
    weight, state = module.weight, {name: tensor.clone() for name, tensor in module.state_dict().items()}
    find_form(module)
    assert module.weight is weight
    assert module.weight.grad is None
    torch.testing.assert_close(dict(module.state_dict()), state)


def of_all_dims(module: SomeNorm, x: torch.Tensor) -> torch.Tensor:
    dims = tuple(range(1, x.dim()))
    return x * torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + 1e-6) * module.weight


def of_channels(module: SomeNorm, x: torch.Tensor) -> torch.Tensor:
    weight = module.weight.view(-1, *[1] * (x.dim() - 2))
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * weight


def of_channels_of_images(module: SomeNorm, x: torch.Tensor) -> torch.Tensor:
    dim = 1 if x.dim() == 4 else -1
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + 1e-6) * module.weight


@pytest.mark.parametrize("compute", [of_all_dims, of_channels, of_channels_of_images])
def test_a_norm_over_other_dims_of_inputs_with_more_dims_is_refused(compute: Callable[..., torch.Tensor]) -> None:
    assert isinstance(find_form(SomeNorm(lambda module, x: normalised(x) * module.weight)), NormForm)
    found = find_form(SomeNorm(compute))
    assert isinstance(found, str)
    assert "dims" in found


def test_attributes_and_another_forward_are_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(module: Any, x: torch.Tensor) -> torch.Tensor:
        return normalised(x) * (module.weight + module._offset) * module.factor

    def find(offset: float, factor: float) -> Any:
        module = SomeNorm(scaled)
        module._offset, module.factor = offset, factor  # type: ignore[assignment]
        return find_form(module)

    assert [find(*numbers).weight_offset for numbers in ((0.0, 1.0), (1.0, 1.0))] == [0.0, 1.0]
    assert "differs" in find(0.0, 3.0)
    monkeypatch.setattr(SomeNorm, "forward", lambda self, x: 2 * scaled(self, x))
    assert "differs" in find(0.0, 1.0)


def test_a_parameter_that_became_an_attribute_is_used() -> None:
    """FSDP replaces the parameters of a module by views while it computes."""
    module: Any = SomeNorm(lambda m, x: m.weight * normalised(x))
    assert _parameter(module, "weight") is module._parameters["weight"]
    del module._parameters["weight"]
    module.weight = torch.full((16,), 3.0)
    assert _parameter(module, "weight") is module.weight
    assert _parameter(module, None) is None


def test_norm_that_calls_modules_is_left_with_the_reason() -> None:
    class ConditionedLayerNorm(torch.nn.LayerNorm):
        def __init__(self) -> None:
            super().__init__(8)
            self.scale = torch.nn.Linear(8, 8)

    class PreLayerNormBlock(torch.nn.Sequential):
        """Is no norm."""

    entries = tridal.kernelize(
        torch.nn.Sequential(ConditionedLayerNorm(), PreLayerNormBlock(torch.nn.Identity()))
    ).entries
    assert [(entry.name, entry.reason) for entry in entries] == [
        ("0", "it calls the modules scale, and a norm calls none")
    ]
