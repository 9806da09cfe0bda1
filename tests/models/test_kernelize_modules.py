"""What a kernelized model keeps: hooks, ties, copies, pickles, adapters, compiled functions and generation."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch

import tridal
from model_helpers import ODD, assert_same_step, batch, build, check_step, ops_of, step
from torch_versions import compiles_transformers

NORMS = {"rms_norm", "rms_norm_backward"}
EAGER = NORMS | {"swiglu", "swiglu_backward", "rotary_embedding", "rotary_embedding_backward"}
OPS = EAGER | {"cross_entropy", "cross_entropy_backward"}
FUSED_OPS = EAGER | {"cross_entropy_with_gradient"}
"""The kernels of a step with `fused_loss=True`."""


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_compute_with_their_own_weights(device: torch.device, duplicate: Any) -> None:
    model = build("Llama").to(device)
    for module in model.modules():
        module.__dict__.pop("_kernel_funcs", None)  # functions for the package kernels, which pickle refuses
    expected = step(model)
    report = tridal.kernelize(model, fused_loss=True)
    other = duplicate(model)
    assert type(other) is type(model)
    report.restore()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert check_step(other, expected, FUSED_OPS).logits is None
    tridal.models.restore(other)
    assert ops_of(lambda: step(other)) == set()
    assert [(type(a), sorted(a.__dict__)) for a in other.modules()] == [
        (type(b), sorted(b.__dict__)) for b in model.modules()
    ]


@compiles_transformers
def test_compiler_gets_the_same_graphs(device: torch.device) -> None:
    """A compiler fuses norms, rotary embedding, MLP and loss. It compiles a function again that it compiled before."""
    model, found = build("Llama").to(device), []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append([(n.op, str(n.target)) for n in graph.graph.nodes if n.op in ("call_function", "call_method")])
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend)
    compiled(**batch(device))
    tridal.kernelize(model)
    compiled(**batch(device))
    assert found[len(found) // 2 :] == found[: len(found) // 2]


def test_hooks_names_ties_and_the_signature_are_kept(device: torch.device) -> None:
    model, calls = build("Llama", tie_word_embeddings=True).to(device), []
    norm, weight = model.model.norm, model.model.norm.weight
    signature = inspect.signature(model.forward)  # transformers' Trainer selects the columns of a dataset by it
    norm.register_forward_pre_hook(lambda *_: calls.append("before"))
    norm.register_forward_hook(lambda *_: calls.append("after"))
    classes = [type(module) for module in model.modules()]
    tridal.kernelize(model, fused_loss=True)
    step(model)
    assert calls == ["before", "after"]
    assert inspect.signature(model.forward) == signature
    assert norm.weight is weight
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for module, kind in zip(model.modules(), classes, strict=True):
        assert isinstance(module, kind)
        assert (type(module).__name__, type(module).__module__) == (kind.__name__, kind.__module__)


@compiles_transformers
def test_compiled_model_is_one_graph_with_the_same_gradients(device: torch.device) -> None:
    """The width of its norms is no multiple of 16, so that tridal computes them in compiled functions, too."""
    model = build("Llama", **ODD).to(device)
    expected = step(model)
    tridal.kernelize(model, fused_loss=True)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert check_step(model, expected, NORMS | FUSED_OPS - EAGER, call=compiled).logits is None


def test_adapters_of_peft_are_trained(device: torch.device) -> None:
    """They may be added before or after kernelize. A head with an adapter is not fused."""
    peft = pytest.importorskip("peft")

    def adapted(model: Any) -> Any:
        torch.manual_seed(0)
        targets = ["q_proj", "gate_proj", "down_proj", "lm_head"]
        config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
        return peft.get_peft_model(model, config)

    before, after = adapted(build("Llama").to(device)), build("Llama").to(device)
    expected = step(before)
    tridal.kernelize(before, fused_loss=True)
    tridal.kernelize(after, fused_loss=True)
    for model in (before, adapted(after)):
        assert check_step(model, expected, OPS).logits is not None
    assert "lora" not in "".join(name for name, _ in before.merge_and_unload().named_parameters())


def test_checkpointed_layers_give_the_same_gradients(device: torch.device) -> None:
    """Also if the model was kernelized in inference mode, and computes in a function mode."""
    model = build("Llama").to(device)
    expected = step(model)
    model.gradient_checkpointing_enable()
    with torch.inference_mode():
        tridal.kernelize(model, fused_loss=True)
    with device:  # a mode, as `torch.set_default_device`
        assert_same_step(step(model), expected)


def test_model_without_memory_is_replaced(device: torch.device) -> None:
    with torch.device("meta"):
        model = build("Llama")
    report = tridal.kernelize(model)
    assert len(report.replaced) == 6
    assert report.notes == ()
    model.to_empty(device=device)
    model.load_state_dict(build("Llama").state_dict())
    model.model.rotary_emb = build("Llama").to(device).model.rotary_emb
    assert_same_step(step(model), step(build("Llama").to(device)))


@pytest.mark.parametrize("affine", [True, False])
def test_a_later_parameter_and_a_keyword_are_used(device: torch.device, affine: bool) -> None:
    module = torch.nn.LayerNorm(4, elementwise_affine=affine, bias=False, device=device)
    x = torch.randn(2, 4, device=device)
    tridal.kernelize(module)
    setattr(module, "bias" if affine else "weight", torch.nn.Parameter(torch.randn(4, device=device)))
    expected = torch.nn.functional.layer_norm(x, (4,), module.weight, module.bias)
    torch.testing.assert_close((module(x), module(input=x)), (expected, expected))


@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.Softmax])
def test_traced_modules_are_as_before(device: torch.device, kind: Any) -> None:
    module = kind(1 if kind is torch.nn.Softmax else 4).to(device)
    x = torch.randn(2, 4, device=device)
    expected = torch.jit.trace(module, x)
    with tridal.kernelize(module):
        traced = torch.jit.trace(module, x)
    nodes, expected_nodes = ([node.kind() for node in t.inlined_graph.nodes()] for t in (traced, expected))
    assert nodes == expected_nodes
    torch.testing.assert_close(traced(x[:1]), module(x[:1]))
