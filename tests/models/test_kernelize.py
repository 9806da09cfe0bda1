"""`tridal.kernelize` of transformers models: results, gradients, the report, and what is replaced."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import tridal
from model_helpers import assert_same_step, build, check_step, ops_of, step
from tridal.devices.types import Backend


@pytest.mark.parametrize(
    ("name", "ops", "dtype"),
    [
        ("Llama", {"rms_norm", "swiglu", "rotary_embedding", "cross_entropy"}, torch.bfloat16),
        ("Phi3", {"rms_norm", "swiglu", "rotary_embedding", "cross_entropy"}, torch.float32),
        ("Gemma2", {"rms_norm", "geglu", "rotary_embedding", "cross_entropy"}, torch.bfloat16),
        ("GPT2", {"layer_norm", "cross_entropy"}, torch.bfloat16), ("Qwen3", None, None),
    ],
)  # fmt: skip
def test_outputs_and_gradients_are_the_same(device: torch.device, name: str, ops: Any, dtype: Any) -> None:
    """Without a dtype, the model is float32 under autocast."""
    model = build(name).to(device, dtype)
    names, order = list(model.state_dict()), [id(parameter) for parameter in model.parameters()]
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype is None):
        expected = step(model)
        report = tridal.kernelize(model)
        if ops is None:
            assert_same_step(step(model), expected, torch.bfloat16)
        else:
            check_step(model, expected, ops | {f"{op}_backward" for op in ops}, dtype)
    assert list(model.state_dict()) == names
    assert [id(parameter) for parameter in model.parameters()] == order
    report.restore()
    assert ops_of(lambda: step(model)) == set()


@pytest.mark.parametrize("name", ["T5", "Llama", "Gemma"])
def test_weights_of_another_dtype_are_computed_in_the_order_of_the_class(device: torch.device, name: str) -> None:
    """T5 rounds to the weight's dtype, LLaMA to the input's."""
    model, x = build(name).to(device), torch.randn(64, 32, device=device)
    norm = model.encoder.final_layer_norm if name == "T5" else model.model.norm
    for dtype, weight in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        norm.to(weight)
        expected = norm(x.to(dtype))
        with tridal.kernelize(norm):
            # Triton's interpreter truncates to bfloat16, so half of the numbers differ by a rounding.
            torch.testing.assert_close(norm(x.to(dtype)), expected, rtol=2**-7, atol=0)


class ScaledRMSNorm(torch.nn.RMSNorm):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if scale is None else x * scale)


class OwnSoftmax(torch.nn.Softmax):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def quantized() -> torch.nn.Module:
    norm = torch.nn.LayerNorm(8)
    norm.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.int8), requires_grad=False)
    return norm


SCRIPT = "TorchScript has compiled it, and tridal replaces only Python modules"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_report_says_what_was_replaced_and_why_not(device: torch.device) -> None:
    reasons = {
        ScaledRMSNorm(8): "its forward takes (x, scale), and a norm takes one tensor, or a tensor and a gate",
        OwnSoftmax(-1): "it has its own forward, which is not that of torch.nn.Softmax",
        tridal.nn.RMSNorm(8): "it is a module of tridal",
        quantized(): "tridal has no norm with parameters of these dtypes: Parameter of torch.float32, Parameter of "
        "torch.int8",
        torch.jit.script(torch.nn.LayerNorm(8)): SCRIPT,
        torch.jit.trace(torch.nn.Softmax(-1), torch.ones(2, 4)): SCRIPT,
    }
    model = torch.nn.Sequential(*reasons, torch.nn.Softmax(-1), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)).to(device)
    report = tridal.kernelize(model)
    assert [entry.reason for entry in report.unchanged] == list(reasons.values())
    assert {entry.name: entry.replaced_by for entry in report.replaced} == {
        "6": "tridal.softmax", "7": "tridal.layer_norm",
    }  # fmt: skip
    assert json.loads(json.dumps(report.as_dict()))["entries"][4]["class_name"] == "LayerNorm"
    lines = str(report).splitlines()
    assert lines[0] == "Sequential: 2 modules replaced, 6 left unchanged"
    assert max(map(len, lines)) <= 78
    assert "OwnSoftmax (1): left unchanged; it has its own forward" in " ".join(str(report).split())
    assert ops_of(lambda: model[6](torch.ones(2, 8, device=device))) == {"softmax"}
    nothing = tridal.kernelize(model[8])
    assert (nothing.entries, [note.split(",")[0] for note in nothing.notes]) == ((), ["it has no norm"])


def test_hook_of_accelerate_is_named_and_may_be_added_later(device: torch.device) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, x = torch.nn.Sequential(torch.nn.LayerNorm(8)).to(device), torch.randn(2, 8, device=device)
    expected = model(x)
    tridal.kernelize(model)
    accelerate.cpu_offload(model, execution_device=device)
    assert ops_of(lambda: torch.testing.assert_close(model(x), expected)) == {"layer_norm"}
    tridal.models.restore(model)
    (entry,) = tridal.kernelize(model).unchanged
    assert str(entry.reason).startswith("another package has replaced its forward by accelerate.hooks.new_forward;")


def test_a_second_report_restores_nothing(device: torch.device) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(8)).to(device)

    def ops() -> set[str]:
        return ops_of(lambda: model(torch.ones(2, 8, device=device)))

    first, second = tridal.kernelize(model), tridal.kernelize(model)
    assert [entry.reason for entry in second.entries] == [
        "it is replaced already; tridal.models.restore(model) undoes it"
    ]
    second.restore()
    assert ops() == {"layer_norm"}
    first.restore()
    assert ops() == set()
    tridal.kernelize(model)
    first.restore()
    assert ops() == {"layer_norm"}


SKIPPED_LAYER = [
    f"model.layers.0.{name}" for name in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
]


@pytest.mark.parametrize(
    ("skip", "skipped"),
    [
        ("model.norm", ["model.norm"]), (["*.input_layernorm"], SKIPPED_LAYER[2:3]), (torch.nn.Linear, []),
        (["", "model.layers.0.*"], ["", *SKIPPED_LAYER]),
    ],
)  # fmt: skip
def test_skipped_modules_are_left_unchanged_and_reported(skip: Any, skipped: list[str]) -> None:
    with torch.device("meta"):
        report = tridal.kernelize(build("Llama"), skip=skip)
    assert [entry.name for entry in report.unchanged] == skipped
    assert {entry.reason for entry in report.unchanged} <= {"it is skipped"}
    assert len(report.replaced) == 6 - len(skipped)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (TypeError, {"fused_loss": 1}),
        (ValueError, {"skip": "norm"}),
        (TypeError, {"skip": 3}),
        (TypeError, {"skip": [3]}),
    ],
)
def test_wrong_arguments_are_refused(error: Any, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(error, match=f"{name}.*{value}"):
        tridal.kernelize(torch.nn.Linear(2, 2), **options)
    for function in (tridal.kernelize, tridal.models.restore):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got str"):
            function("gpt2")  # type: ignore[arg-type]


def test_model_computes_as_before_on_a_device_without_a_backend() -> None:
    model = build("Llama")
    with tridal.use(device="cpu"):
        expected = step(model)
        report = tridal.kernelize(model, fused_loss=True)
        assert report.notes == (
            "no backend serves cpu tensors: the replaced modules compute as before until the model is on a device that "
            "a backend serves; see `tridal doctor`",
        )
        got = step(model)
    assert got[0].logits is not None
    torch.testing.assert_close(got[0].logits, expected[0].logits, rtol=0, atol=0)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=0)


def test_note_about_the_interpreter_in_bfloat16(backend: Backend, device: torch.device) -> None:
    notes = tridal.kernelize(torch.nn.LayerNorm(4, dtype=torch.bfloat16, device=device)).notes
    assert ["which truncates to bfloat16" in note for note in notes] == [True] * backend.interpreted


def test_comparisons_are_not_recorded(device: torch.device) -> None:
    class Own(torch.nn.LayerNorm):
        """Not compared before."""

    norm, model = Own(8).to(device), build("Llama").to(device)
    with tridal.override_torch(), tridal.record_calls() as calls:
        tridal.kernelize(model, fused_loss=True)
        tridal.kernelize(norm)
        assert calls == []
        norm(torch.randn(2, 8, device=device))
    assert [call.op for call in calls] == ["layer_norm"]


def test_random_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def seed_all(seed: int) -> None:
        raise AssertionError("torch.manual_seed also seeds the generators of accelerators")

    model = build("Llama", hidden_size=48)
    state = torch.get_rng_state()
    monkeypatch.setattr(torch, "manual_seed", seed_all)
    report = tridal.kernelize(model, fused_loss=True)
    assert any("linear_cross_entropy" in str(entry.replaced_by) for entry in report.replaced)
    assert torch.equal(torch.get_rng_state(), state)
