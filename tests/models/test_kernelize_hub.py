"""tridal's layers in Hugging Face's package `kernels`, with the classes of transformers and torch as they are."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from model_helpers import build, check_step, ops_of, step, transformers
from tridal.models import hub

kernels = pytest.importorskip("kernels")
kernel_config = pytest.importorskip("transformers.utils.kernel_config")
MODE = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
DEVICES = ("cpu", "cuda", "rocm", "npu")
supports_kernels = pytest.mark.skipif(
    not transformers.utils.is_kernels_available(), reason="this transformers does not support this version of kernels"
)


def kernelize(model: Any, mapping: Any = None) -> Any:
    """Lets `kernels` replace the norms of a model with the mapping of it, or with another one."""
    with kernels.use_kernel_mapping(hub.kernel_mapping(model) if mapping is None else mapping, inherit_mapping=False):
        return kernels.kernelize(model, mode=MODE, device=next(model.parameters()).device)


@pytest.mark.parametrize(("name", "op"), [("Gemma", "rms_norm"), ("GPT2", "layer_norm")])
def test_layer_computes_the_norm_of_the_class(device: torch.device, name: str, op: str) -> None:
    """The mapping of a model is for its modules only."""
    model, other = build(name).to(device), build(name).to(device)
    expected = step(model)
    kernelize(other, hub.kernel_mapping(model))
    assert ops_of(lambda: step(other)) == set()
    for _ in range(2):
        kernelize(model)
        check_step(model, expected, {op, f"{op}_backward"})


def test_class_keeps_its_layer_name(device: torch.device) -> None:
    @kernels.use_kernel_forward_from_hub("RMSNorm")
    class Named(torch.nn.RMSNorm):
        pass

    model = torch.nn.Sequential(Named(8)).to(device)
    assert set(hub.kernel_mapping(model)) == {"RMSNorm"}
    kernelize(model)
    assert ops_of(lambda: model(torch.randn(2, 8, device=device))) == {"rms_norm"}


def test_kernels_without_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unnamed(torch.nn.LayerNorm):
        pass

    monkeypatch.delattr(torch.nn.LayerNorm, "kernel_layer_name", raising=False)
    monkeypatch.setattr(kernels, "replace_kernel_forward_from_hub", lambda cls, layer_name: None)
    with pytest.raises(
        ImportError, match=r"kernels \S+ cannot give \S+Unnamed a layer name: pip install 'kernels>=0\.17'"
    ):
        hub.kernel_mapping(Unnamed(8))


def of_class(base: Any, layer: str, device: torch.device, cols: int = 20, **kwargs: Any) -> Any:
    """Returns a module of a class that computes by a layer of the repository, with random weights."""
    torch.manual_seed(0)
    module = kernels.use_kernel_forward_from_hub("Named")(type(base.__name__, (base,), {}))(cols, **kwargs).to(device)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    repository = kernels.LocalLayerRepository(hub.repository(), layer_name=layer)
    with kernels.use_kernel_mapping({"Named": dict.fromkeys(DEVICES, repository)}):
        return kernels.kernelize(module, mode=MODE, device=device)


@supports_kernels
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_transformers_loads_the_repository(device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    types = [*kernel_config.KERNELS_SUPPORTED_DEVICE_TYPES, device.type]
    monkeypatch.setattr(kernel_config, "KERNELS_SUPPORTED_DEVICE_TYPES", types)  # it lacks the CPU
    model = build(name).to(device)
    expected = step(model)
    mapping = {"RMSNorm": f"{hub.repository()}:RMSNorm"}
    model.set_use_kernels(True, transformers.KernelConfig(mapping, use_local_kernel=True))
    check_step(model, expected, {"rms_norm", "rms_norm_backward"})


NORMS = {
    "models.llama.modeling_llama.LlamaRMSNorm": ("RMSNorm", "rms_norm"),
    "models.gemma.modeling_gemma.GemmaRMSNorm": ("RMSNorm", "rms_norm"),
    "models.qwen3_5.modeling_qwen3_5.Qwen3_5RMSNorm": ("RMSNormZeroCentered", "rms_norm"),
    "models.cohere.modeling_cohere.CohereLayerNorm": ("LayerNorm", "layer_norm"),
}


@pytest.mark.parametrize(("path", "dtype"), zip(NORMS, 2 * (torch.bfloat16, torch.float32), strict=True))
def test_layer_of_the_repository_computes_the_class(device: torch.device, path: str, dtype: torch.dtype) -> None:
    module, _, name = path.rpartition(".")
    base = getattr(pytest.importorskip(f"transformers.{module}"), name)
    layer, op = NORMS[path]
    norm = of_class(base, layer, device, eps=1e-2).to(dtype)
    x = torch.randn(2, 3, 20, device=device, dtype=dtype)
    got: list[torch.Tensor] = []
    assert ops_of(lambda: got.append(norm(x))) == {op}
    torch.testing.assert_close(got[0], type(norm).forward(norm, x))


def test_activation_of_the_repository_is_one_function_of_torch(device: torch.device) -> None:
    class NewGELU(transformers.activations.NewGELUActivation):  # type: ignore[misc]
        def __init__(self, _: int) -> None:
            super().__init__()

    activation = of_class(NewGELU, "NewGELU", device).to(device)
    x = torch.randn(9, device=device, requires_grad=True)
    y = activation(x)
    torch.testing.assert_close(y, type(activation).forward(activation, x))
    assert y.grad_fn.name() == "GeluBackward0"


@pytest.mark.parametrize(("name", "layer", "op"), [("Llama", "SwiGLUMLP", "swiglu"), ("Gemma", "GeGLUMLP", "geglu")])
def test_mlp_of_the_repository_computes_the_class(device: torch.device, name: str, layer: str, op: str) -> None:
    model = build(name).to(device)
    expected = step(model)
    mlp = model.model.layers[0].mlp
    mlp.__class__ = kernels.use_kernel_forward_from_hub("Named")(type("MLP", (type(mlp),), {}))
    repository = kernels.LocalLayerRepository(hub.repository(), layer_name=layer)
    with kernels.use_kernel_mapping({"Named": dict.fromkeys(DEVICES, repository)}, inherit_mapping=False):
        kernels.kernelize(mlp, mode=MODE, device=device)
    check_step(model, expected, {op, f"{op}_backward"})


def test_module_is_not_compared_while_it_is_traced_or_compiled(device: torch.device) -> None:
    norm = of_class(torch.nn.RMSNorm, "RMSNorm", device)
    x = torch.randn(4, 20, device=device)
    expected = type(norm).forward(norm, x)
    torch.compiler.reset()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    traced = torch.jit.trace(norm, x, check_trace=False)
    for ops, call in ((set(), traced), (set(), compiled), ({"rms_norm"}, norm), ({"rms_norm"}, compiled)):
        assert ops_of(lambda call=call: torch.testing.assert_close(call(x), expected)) == ops


@pytest.mark.parametrize("variant", ["cu126", "cann80"])
def test_repository_serves_every_backend(variant: str) -> None:
    found = kernels.backends.parse_backend(variant)
    with mock.patch("kernels.variants._select_backend", return_value=found):
        assert kernels.get_local_kernel(hub.repository()).layers.RMSNorm.has_backward
