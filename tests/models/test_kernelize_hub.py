"""tridal's layers in Hugging Face's package `kernels`, with the classes of transformers and torch as they are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from model_helpers import build, check_step, ops_of, step, transformers
from processes import python
from tridal.models import hub

kernels = pytest.importorskip("kernels")
kernel_config = pytest.importorskip("transformers.utils.kernel_config")
ROOT = Path(__file__).parents[2]
MODE = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
DEVICES = ("cpu", "cuda", "rocm", "npu")
supports_kernels = pytest.mark.skipif(
    not transformers.utils.is_kernels_available(), reason="this transformers does not support this version of kernels"
)


def kernelize(model: Any, mapping: Any, device: torch.device) -> Any:
    """Lets `kernels` replace modules of a model."""
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        return kernels.kernelize(model, mode=MODE, device=device)


@pytest.mark.parametrize(("name", "op"), [("Gemma", "rms_norm"), ("GPT2", "layer_norm")])
def test_layer_computes_the_norm_of_the_class(device: torch.device, name: str, op: str) -> None:
    """The mapping of a model is for its modules only."""
    model, other = build(name).to(device), build(name).to(device)
    expected = step(model)
    kernelize(other, hub.kernel_mapping(model), device)
    assert ops_of(lambda: step(other)) == set()
    for _ in range(2):
        kernelize(model, hub.kernel_mapping(model), device)
        check_step(model, expected, {op, f"{op}_backward"})


def test_kernels_without_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unnamed(torch.nn.LayerNorm):
        pass

    monkeypatch.delattr(torch.nn.LayerNorm, "kernel_layer_name", raising=False)
    monkeypatch.setattr(kernels, "replace_kernel_forward_from_hub", lambda cls, layer_name: None)
    with pytest.raises(
        ImportError, match=r"kernels \S+ cannot give \S+Unnamed a layer name: pip install 'kernels>=0\.17'"
    ):
        hub.kernel_mapping(Unnamed(8))


@supports_kernels
def test_transformers_loads_the_repository(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    types = [*kernel_config.KERNELS_SUPPORTED_DEVICE_TYPES, device.type]
    monkeypatch.setattr(kernel_config, "KERNELS_SUPPORTED_DEVICE_TYPES", types)  # it lacks the CPU
    model = build("Qwen3").to(device)
    expected = step(model)
    mapping = {"RMSNorm": f"{hub.repository()}:RMSNorm"}
    model.set_use_kernels(True, transformers.KernelConfig(mapping, use_local_kernel=True))
    check_step(model, expected, {"rms_norm", "rms_norm_backward"})


@pytest.mark.slow("it installs two packages")
@pytest.mark.nightly("the tests of this file that load the repository without transformers")
def test_pair_of_versions_on_the_page_loads_the_repository(tmp_path: Path) -> None:
    """Installs the packages of the page into a folder, and runs the test above with them."""
    page = (ROOT / "docs" / "models.md").read_text()
    (pair,) = re.findall(r"`pip install (transformers==\S+) (kernels==[^\s`]+)`", page)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(tmp_path))
    if (installed := python(*pip, *pair, new=True, code=None)).returncode:
        pytest.skip(f"pip cannot install {' and '.join(pair)}: {installed.stderr.splitlines()[-1]}")
    test = f"{__file__}::{test_transformers_loads_the_repository.__name__}"
    pytest_ = ("-m", "pytest", "-q", "--backend", "interpreter", "-p", "no:cacheprovider", test)
    assert "1 passed" in python(*pytest_, path=[tmp_path], cwd=ROOT, new=True).stdout


def with_layer(module: Any, layer: str, device: torch.device) -> Any:
    """Returns a module whose class computes by a layer of the repository."""
    kind = type(type(module).__name__, (type(module),), {})
    module.__class__ = kernels.use_kernel_forward_from_hub("Named")(kind)
    repository = kernels.LocalLayerRepository(hub.repository(), layer_name=layer)
    return kernelize(module.to(device), {"Named": dict.fromkeys(DEVICES, repository)}, device)


def norm_of(path: str) -> Any:
    """Returns a norm of transformers with random weights."""
    module, _, name = path.rpartition(".")
    norm = getattr(importlib.import_module(f"transformers.models.{module}"), name)(20, eps=1e-2)
    torch.nn.init.normal_(norm.weight)
    return norm


def mlp_of(name: str) -> Any:
    return build(name).model.layers[0].mlp


LAYERS: dict[str, tuple[Any, str, set[str]]] = {
    "Llama": (lambda: norm_of("llama.modeling_llama.LlamaRMSNorm"), "RMSNorm", {"rms_norm"}),
    "Qwen3.5": (lambda: norm_of("qwen3_5.modeling_qwen3_5.Qwen3_5RMSNorm"), "RMSNormZeroCentered", {"rms_norm"}),
    "Cohere": (lambda: norm_of("cohere.modeling_cohere.CohereLayerNorm"), "LayerNorm", {"layer_norm"}),
    "SwiGLU": (lambda: mlp_of("Llama"), "SwiGLUMLP", {"swiglu"}),
    "GeGLU": (lambda: mlp_of("Gemma"), "GeGLUMLP", {"geglu"}),
    "GELU": (transformers.activations.NewGELUActivation, "NewGELU", set()),
    "Qwen3-Next": (
        lambda: norm_of("qwen3_next.modeling_qwen3_next.Qwen3NextRMSNormGated"), "RMSNormGated", {"gated_rms_norm"},
    ),
}  # fmt: skip


DTYPES = 3 * (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(("name", "dtype"), [*zip(LAYERS, (*DTYPES, torch.float32), strict=True)])
def test_layer_of_the_repository_computes_the_class(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """The first call compares the module, also inside a checkpoint."""
    make, layer, ops = LAYERS[name]
    module = with_layer(make(), layer, device).to(dtype)
    cols = next((p.shape[-1] for p in module.parameters()), 9)
    x = torch.randn(2, 3, cols, device=device, dtype=dtype, requires_grad=True)
    inputs = (x, x.cos()) if layer == "RMSNormGated" else (x,)
    expected = type(module).forward(module, *inputs)
    got = torch.utils.checkpoint.checkpoint(module, *inputs, use_reentrant=False)
    torch.testing.assert_close(got, expected)
    assert ops_of(lambda: module(*inputs)) == ops
    if not ops:
        assert module(x).grad_fn.name() == "GeluBackward0"


def test_module_is_not_compared_while_it_is_compiled(device: torch.device) -> None:
    norm, x = with_layer(torch.nn.RMSNorm(20), "RMSNorm", device), torch.randn(4, 20, device=device)
    torch.compiler.reset()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for ops, call in ((set(), compiled), ({"rms_norm"}, norm), ({"rms_norm"}, compiled)):
        assert ops_of(lambda call=call: call(x)) == ops


@pytest.mark.parametrize("variant", ["cu126", "cann80"])
def test_repository_serves_every_backend(variant: str) -> None:
    found = kernels.backends.parse_backend(variant)
    with mock.patch("kernels.variants._select_backend", return_value=found):
        assert kernels.get_local_kernel(hub.repository()).layers.RMSNorm.has_backward
