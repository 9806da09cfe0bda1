"""Routers of transformers that `kernelize` replaces: the same results and gradients as before, and those it leaves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.models.candidates import decide
from tridal.models.routers import RouterForm

transformers = pytest.importorskip("transformers")

Tensor = torch.Tensor
SMALL = {
    "hidden_size": 64,
    "num_experts_per_tok": 3,
    "num_local_experts": 16,
    "num_experts": 16,
    "n_routed_experts": 16,
}
GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
KINDS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "mixtral": ("Mixtral", "TopKRouter", {}, "tridal.route_top_k, normalize=True"),
    "qwen3_moe": ("Qwen3Moe", "TopKRouter", {"norm_topk_prob": False}, "tridal.route_top_k"),
    "granitemoe": ("GraniteMoe", "TopKRouter", {}, "tridal.route_top_k, normalize=True"),
    "gpt_oss": ("GptOss", "TopKRouter", {}, "tridal.route_top_k, normalize=True"),
    "deepseek_v2": ("DeepseekV2", "TopkRouter", {**GROUPS, "topk_method": "group_limited_greedy"},
                    "tridal.route_top_k, groups=4, top_groups=2, group_score='max', scaling_factor=2.5"),
    "deepseek_v3": ("DeepseekV3", "TopkRouter", GROUPS,
                    "tridal.route_top_k, score='sigmoid', groups=4, top_groups=2, group_score='top2', normalize=True, "
                    "eps=1e-20, scaling_factor=2.5, with a bias"),
    "minimax_m2": ("MiniMaxM2", "TopKRouter", {}, "tridal.route_top_k, score='sigmoid', normalize=True, with a bias"),
    "deepseek_v4": ("DeepseekV4", "TopKRouter", {}, "tridal.route_top_k, score='sqrtsoftplus', normalize=True, "
                    "eps=1e-20, scaling_factor=1.5, with a bias"),
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, device: torch.device | str = "cpu") -> Any:
    """Returns a router with random numbers."""
    name, ending, options, _ = KINDS[kind]
    module = getattr(transformers.models, kind)
    modeling = getattr(module, f"modeling_{kind}")
    config = getattr(module, f"{name}Config")(**{**SMALL, **options})
    torch.manual_seed(0)
    made = getattr(modeling, f"{name}{ending}")(config)
    for tensor in (*made.parameters(), *made.buffers()):
        torch.nn.init.normal_(tensor.data)
    return made.to(device)


def arguments(kind: str, x: Tensor) -> tuple[Tensor, ...]:
    return (x, torch.linspace(-1, 1, 16, device=x.device).roll(5)) if kind == "minimax_m2" else (x,)


def compare(kind: str, ours: Any, theirs: Any, x: Tensor) -> set[str]:
    """Compares results and gradients, and returns the names of the calls of tridal."""
    found: list[list[Tensor]] = []
    with tridal.record_calls() as calls:
        for module in (ours, theirs):
            own = x.detach().requires_grad_()
            logits, weights, indices = module(*arguments(kind, own))
            order = indices.argsort(-1)
            weights = weights.gather(-1, order)
            loss = logits.double().cos().sum() + (weights.double() * torch.arange(3, device=x.device)).sum()
            grads = torch.autograd.grad(loss, [own, module.weight])
            found.append([logits, weights, indices.gather(-1, order), *grads])
    tolerance = 1e-5 if x.dtype is torch.float32 else 2**-6
    for a, b in zip(*found, strict=True):
        assert_close(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(b.detach().abs().max())))
    return {call.op for call in calls}


@EACH
def test_results_and_gradients_are_those_of_the_class(device: torch.device, kind: str) -> None:
    theirs = make(kind, device)
    ours = copy.deepcopy(theirs)
    report = tridal.kernelize(ours)
    assert KINDS[kind][3] in str(report).replace("\n", " ").replace("    ", "")
    x = torch.randn(20, 64, device=device)
    for _ in range(2):
        assert compare(kind, ours, theirs, x) == {"route_top_k", "route_top_k_backward"}
    with torch.autocast(device.type, torch.bfloat16):
        assert compare(kind, ours, theirs, x) == set()
    report.restore()
    assert compare(kind, ours, theirs, x) == set()


@EACH
def test_16_bit_weights_and_inputs_of_three_dims(device: torch.device, kind: str) -> None:
    theirs = make(kind, device).bfloat16()
    ours = copy.deepcopy(theirs)
    tridal.kernelize(ours)
    narrow = kind != "deepseek_v4"  # it computes scores in bfloat16
    for shape in ((40, 64), (2, 20, 64)) if kind not in ("granitemoe", "gpt_oss") else ((40, 64),):
        x = torch.eye(40, 64, device=device).bfloat16().view(shape)
        assert bool(compare(kind, ours, theirs, x)) is narrow


def test_changes_of_the_bias_are_used_and_those_of_numbers_are_left_to_the_class(device: torch.device) -> None:
    ours = make("deepseek_v3", device)
    tridal.kernelize(ours)
    x = torch.randn(20, 64, device=device)
    before = ours(x)[2]
    ours.e_score_correction_bias[7] += 100.0
    after = ours(x)[2]
    assert not before.eq(7).any(-1).all()
    assert after.eq(7).any(-1).all()
    ours.routed_scaling_factor = 1.0
    with tridal.record_calls() as calls:
        weights = ours(x)[1]
    assert not calls
    assert_close(weights.sum(-1), torch.ones(20, device=device))


def test_compiled_routers_call_tridal(device: torch.device) -> None:
    ours = make("mixtral", device)
    expected = ours(x := torch.randn(20, 64, device=device))
    tridal.kernelize(ours)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    found = torch.compile(ours, backend=backend, fullgraph=True)(x)
    assert any("route_top_k" in target for target in seen)
    assert_close(found[1].sort().values, expected[1].sort().values)


def test_other_routers_are_left_with_the_reason() -> None:
    class Router(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(16, 48))
            self.top_k, self.temperature = 3, 2.0

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = torch.nn.functional.linear(x, self.weight)
            weights, indices = logits.tanh().topk(self.top_k)
            return logits, weights, indices

    class ScaledRouter(Router):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = torch.nn.functional.linear(x, self.weight) / self.temperature
            return logits, *logits.softmax(-1).topk(self.top_k)

    class DenseRouter(Router):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return torch.nn.functional.linear(x, self.weight).softmax(-1)

    for kind, reason in (
        (Router, "it differs from the nearest router"), (ScaledRouter, "its logits are not those of a linear layer"),
        (DenseRouter, "it does not return logits, weights and indices"),
    ):  # fmt: skip
        decision = decide(kind())
        assert decision is not None
        assert decision.reason is not None
        assert decision.reason.startswith(reason)


def test_forms_are_copied_with_the_module(device: torch.device) -> None:
    ours = make("deepseek_v3", device)
    tridal.kernelize(ours)
    copied = copy.deepcopy(ours)
    assert isinstance(copied._tridal_form, RouterForm)
    assert compare("deepseek_v3", copied, make("deepseek_v3", device), torch.randn(9, 64, device=device))
