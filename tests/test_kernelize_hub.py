"""tridal's layers in Hugging Face's package `kernels`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from model_helpers import assert_same_step, build, ops_of, step
from torch_versions import compiles_transformers
from tridal.models import hub

kernels = pytest.importorskip("kernels")


@pytest.fixture
def kernelized(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that lets `kernels` replace the norms of a model."""

    def kernelize(model: Any) -> Any:
        norms = {type(module) for module in model.modules() if "Norm" in type(module).__name__}
        for norm in norms:
            monkeypatch.setattr(norm, "kernel_layer_name", "RMSNorm", raising=False)
        mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
        with kernels.use_kernel_mapping(hub.kernel_mapping(model)):
            return kernels.kernelize(model, mode=mode, device=device.type, use_fallback=False)

    return kernelize


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
def test_layer_computes_the_norm_of_the_class(device: torch.device, kernelized: Any, name: str) -> None:
    model = build(name).to(device)
    expected = step(model)
    kernelized(model)
    got: list[Any] = []
    assert ops_of(lambda: got.append(step(model))) == {"rms_norm", "rms_norm_backward"}
    assert_same_step(got[0], expected)


@compiles_transformers
def test_layer_is_compiled_without_a_call_before(device: torch.device, kernelized: Any) -> None:
    model = build("Llama").to(device)
    expected = step(model)
    kernelized(model)
    torch.compiler.reset()
    got = step(model, torch.compile(model, backend="aot_eager", fullgraph=True))
    assert_same_step(got, expected)


def test_class_that_computes_something_else_is_unchanged(device: torch.device, kernelized: Any) -> None:
    class MeanNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / x.abs().mean(-1, keepdim=True)

    model = torch.nn.Sequential(MeanNorm()).to(device)
    x = torch.randn(2, 8, device=device)
    expected = model(x)
    kernelized(model)
    assert ops_of(lambda: torch.testing.assert_close(model(x), expected)) == set()
