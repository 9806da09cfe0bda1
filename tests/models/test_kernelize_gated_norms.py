"""kernelize of gated norms: the classes of transformers, groups of columns, dtypes, and what is left to the class."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from model_helpers import build, check_step, ops_of, step, transformers

Tensor = torch.Tensor
OP = {"gated_rms_norm"}
MAMBA = "tridal.gated_rms_norm, gate_first=True, casting='llama'"
DELTA = "tridal.gated_rms_norm, casting='llama'"
SIGMOID = "tridal.gated_rms_norm, activation='sigmoid'"
GROUPED = ("mamba2.Mamba", "bamba.Bamba", "granitemoehybrid.GraniteMoeHybrid", "nemotron_h.NemotronH", "zamba2.Zamba2")
OF_DELTA = (
    "olmo_hybrid.OlmoHybrid", "qwen3_5.Qwen3_5", "qwen3_5_moe.Qwen3_5Moe", "qwen3_next.Qwen3Next",
    "qwen4_exp.Qwen4ExpText",
)  # fmt: skip
OF_SIGMOID = ("bailing_hybrid.BailingHybrid", "glm5_next.Glm5NextText", "kimi_linear.KimiLinear")
CLASSES: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"group_size": 64}, MAMBA) for name in GROUPED),
    ("mamba2.Mamba", {"group_size": 16}, f"{MAMBA}, 4 groups"),
    *((name, {}, DELTA) for name in OF_DELTA),
    *((name, {}, SIGMOID) for name in OF_SIGMOID),
    ("lara_mini.LaraMini", {}, "tridal.gated_rms_norm"),
    ("falcon_h1.FalconH1", {}, "tridal.gated_rms_norm"),
    ("falcon_h1.FalconH1", {"norm_before_gate": False}, "tridal.gated_rms_norm, gate_first=True"),
    ("falcon_h1.FalconH1", {"n_groups": 2}, "tridal.gated_rms_norm, 2 groups"),
]
"""The package and the name of each class, the arguments of its constructor, and what replaces it."""
KINDS = [
    (name, options)
    for name, options, _ in CLASSES
    if name == "falcon_h1.FalconH1" or name in ("mamba2.Mamba", "qwen3_next.Qwen3Next", OF_SIGMOID[-1])
]
"""A class of each order of operations."""


def norm_of(name: str, device: torch.device, **options: Any) -> Any:
    """Returns a module of a class with a random weight for 64 columns. Options are those of its constructor."""
    package, kind = name.split(".")
    try:
        module = import_module(f"transformers.models.{package}.modeling_{package}")
    except ImportError:
        pytest.skip(f"transformers {transformers.__version__} has no {package}")
    norm = getattr(module, f"{kind}RMSNormGated")(**{"hidden_size": 64, **options}).to(device)
    with torch.no_grad():
        norm.weight.add_(torch.randn_like(norm.weight) / 4)
    return norm


@pytest.mark.parametrize(("name", "options", "expected"), CLASSES)
def test_every_class_of_transformers_is_replaced(
    device: torch.device, name: str, options: dict[str, Any], expected: str
) -> None:
    (entry,) = tridal.kernelize(norm_of(name, device, **options)).entries
    assert (entry.replaced_by, entry.reason) == (expected, "compiled functions leave it to the compiler")


@pytest.mark.parametrize("dtypes", ["float16", "float32 float16 float16", "float16 float16 float32"])
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_results_and_gradients_are_those_of_the_class(
    device: torch.device, name: str, options: dict[str, Any], dtypes: str
) -> None:
    """The dtypes are those of the input, the gate and the weight."""
    x_dtype, gate_dtype, weight_dtype = (getattr(torch, dtype) for dtype in (dtypes.split() * 3)[:3])
    norm = norm_of(name, device, **options).to(weight_dtype)
    x, gate = (torch.randn(3, 8, 64, device=device).to(dtype).requires_grad_() for dtype in (x_dtype, gate_dtype))
    inputs = (x, gate, norm.weight)
    expected = norm(x, gate)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, inputs, grad)
    tridal.kernelize(norm)
    found: list[Tensor] = []
    assert ops_of(lambda: found.append(norm(x, gate))) == OP
    (y,) = found
    assert y.dtype is expected.dtype
    assert_close(y, expected, rtol=2**-9, atol=1e-5)
    ulp = 1e-5 if y.dtype is torch.float32 else 0
    assert ((y - expected).abs() > ulp * expected.abs()).double().mean() < 0.02, "the order of rounding differs"
    assert_close(torch.autograd.grad(y, inputs, grad), gradients, rtol=2**-7, atol=2e-2)


OF_QWEN = {
    f"{op}{direction}"
    for op in ("swiglu", "rotary_embedding", "rotary_embedding_rest", "route_top_k")
    for direction in ("", "_backward")
} - {"rotary_embedding_rest_backward"}  # the gradient of an element that is copied is a copy, too


@pytest.mark.parametrize("name", ["Qwen3Next", "Mamba2"])
def test_step_of_a_model_is_the_same(device: torch.device, name: str) -> None:
    model = build(name).to(device)
    expected = step(model)
    tridal.kernelize(model)
    ops = OP | {"gated_rms_norm_backward", "rms_norm", "rms_norm_backward", "cross_entropy", "cross_entropy_backward"}
    check_step(model, expected, ops | (OF_QWEN if name == "Qwen3Next" else set()))


def test_the_class_computes_what_has_no_gate_of_the_same_shape(device: torch.device) -> None:
    norm = norm_of("mamba2.Mamba", device, group_size=64)
    x, gate = torch.randn(2, 5, 64, device=device)
    expected = [norm(x), norm(x, None), norm(x, gate=gate), norm(x, gate[:1])]
    tridal.kernelize(norm)
    found: list[Tensor] = []
    calls = [lambda: norm(x), lambda: norm(x, None), lambda: norm(x, gate=gate), lambda: norm(x, gate[:1])]
    assert ops_of(lambda: found.extend(call() for call in calls)) == set()
    assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="must match the size"):
        norm(x, gate[:, :3])


def test_groups_with_another_order_of_rounding_are_left_to_the_class(device: torch.device) -> None:
    """torch multiplies the results of groups by the weight, and this class rounds before that."""

    class RMSNormGated(torch.nn.RMSNorm):
        n_groups: int

        def forward(self, x: Tensor, gate: Tensor) -> Tensor:
            n = functional.rms_norm(x.unflatten(-1, (2, -1)).float(), [32], eps=1e-6).flatten(-2).to(x.dtype)
            return self.weight * n * functional.silu(gate)

    norm = RMSNormGated(64, device=device)
    norm.n_groups = 2
    x, gate = torch.randn(2, 5, 64, device=device)
    expected = norm(x, gate), norm.half()(x.half(), gate.half())
    (entry,) = tridal.kernelize(norm).entries
    assert "it computes these itself: float16 inputs" in str(entry.reason)
    assert ops_of(lambda: assert_close(norm(x.half(), gate.half()), expected[1], rtol=0, atol=0)) == set()
    assert ops_of(lambda: assert_close(norm.float()(x, gate), expected[0])) == OP


@pytest.mark.parametrize("groups", [1, 2])
def test_compiled_functions_and_copies_compute_the_same(device: torch.device, groups: int) -> None:
    """The width is no multiple of 16, so that tridal computes the norm in compiled functions, too."""
    norm: Any = norm_of("mamba2.Mamba", device, group_size=36 // groups, hidden_size=36)
    x, gate = torch.randn(2, 2, 5, 36, device=device)
    expected = norm(x, gate)
    tridal.kernelize(norm)
    torch.compiler.reset()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for call in (compiled, copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        found: list[Tensor] = []
        assert ops_of(lambda call=call, found=found: found.append(call(x, gate))) == OP
        assert_close(found[0], expected)
    tridal.models.restore(norm)
    assert ops_of(lambda: norm(x, gate)) == set()


def test_strided_and_empty_inputs_are_computed(device: torch.device) -> None:
    norm = norm_of("qwen3_next.Qwen3Next", device)
    x, gate = torch.randn(5, 3, 128, device=device)[..., :64], torch.randn(3, 5, 64, device=device).transpose(0, 1)
    expected = norm(x, gate), norm(x[:0], gate[:0])
    tridal.kernelize(norm)
    assert_close((norm(x, gate), norm(x[:0], gate[:0])), expected)
    assert ops_of(lambda: norm(x, gate)) == OP
