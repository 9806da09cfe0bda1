"""tridal's layers in Hugging Face's package `kernels`, with the classes of transformers and torch as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal
from model_helpers import ODD, build, check_step, ops_of, step
from torch_versions import compiles_transformers
from tridal.models import hub

kernels = pytest.importorskip("kernels")


def kernelize(model: Any, mapping_of: Any = None) -> Any:
    """Lets `kernels` replace the norms of a model with the mapping of it, or of another model."""
    mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
    with kernels.use_kernel_mapping(hub.kernel_mapping(model if mapping_of is None else mapping_of)):
        return kernels.kernelize(model, mode=mode)


@pytest.mark.parametrize(("name", "op"), [("Llama", "rms_norm"), ("Gemma", "rms_norm"), ("GPT2", "layer_norm")])
def test_layer_computes_the_norm_of_the_class(device: torch.device, name: str, op: str) -> None:
    model = build(name).to(device)
    expected = step(model)
    kernelize(model)
    for _ in range(2):
        check_step(model, expected, {op, f"{op}_backward"})
        kernelize(model)  # again


@compiles_transformers
def test_layer_is_compiled_without_a_call_before(device: torch.device) -> None:
    model = build("Llama", **ODD).to(device)
    expected = step(model)
    kernelize(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    check_step(model, expected, {"rms_norm", "rms_norm_backward"}, call=compiled)


def test_models_that_were_not_given_are_unchanged(device: torch.device) -> None:
    model, other = build("GPT2").to(device), build("GPT2").to(device)
    kernelize(other, mapping_of=model)
    assert ops_of(lambda: step(other)) == set()


def test_class_keeps_its_layer_name(device: torch.device) -> None:
    @kernels.use_kernel_forward_from_hub("RMSNorm")
    class Named(torch.nn.RMSNorm):
        pass

    model = torch.nn.Sequential(Named(8)).to(device)
    assert set(hub.kernel_mapping(model)) == {"RMSNorm"}
    kernelize(model)
    assert ops_of(lambda: model(torch.randn(2, 8, device=device))) == {"rms_norm"}


def test_class_that_computes_something_else_is_unchanged(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    class MeanNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / x.abs().mean(-1, keepdim=True)

    model = torch.nn.Sequential(MeanNorm()).to(device)
    x = torch.randn(2, 8, device=device)
    expected = model(x)
    kernelize(model)
    assert ops_of(lambda: torch.testing.assert_close(model(x), expected)) == set()
    assert caplog.messages == [
        "kernel_mapping of Sequential: it has no norm that tridal computes; tridal.kernelize(model) says why"
    ]


def test_device_without_a_backend_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with tridal.use(device="cpu"):
        assert hub.kernel_mapping(torch.nn.LayerNorm(8))
    (message,) = caplog.messages
    assert message.startswith(
        "kernel_mapping of LayerNorm: no backend serves cpu tensors: the replaced modules compute"
    )


def test_kernels_without_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unnamed(torch.nn.LayerNorm):
        pass

    monkeypatch.delattr(torch.nn.LayerNorm, "kernel_layer_name", raising=False)
    monkeypatch.setattr(kernels, "replace_kernel_forward_from_hub", lambda cls, layer_name: None)
    with pytest.raises(
        ImportError, match=r"kernels \S+ cannot give \S+Unnamed a layer name: pip install 'kernels>=0\.17'"
    ):
        hub.kernel_mapping(Unnamed(8))
