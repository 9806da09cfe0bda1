"""`tridal.kernelize` of transformers models: results, gradients, the report, and what is replaced."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

import tridal
from model_helpers import assert_same_step, build, check_step, ops_of, step
from tridal.devices.types import Backend

NORMS = {"Bert": "layer_norm", "GPT2": "layer_norm", "Cohere": "layer_norm"}
GLUS = {**dict.fromkeys(("Llama", "Qwen3", "Mistral", "Phi3"), "swiglu"), **dict.fromkeys(("Gemma", "Gemma2"), "geglu")}
MODELS = [*GLUS, "GPT2", "Bert", "T5"]


@pytest.mark.parametrize(("name", "dtype"), zip(MODELS, itertools.cycle((torch.bfloat16, torch.float32)), strict=False))
def test_outputs_and_gradients_are_the_same(device: torch.device, name: str, dtype: torch.dtype) -> None:
    model = build(name).to(device, dtype)
    names, order = list(model.state_dict()), [id(parameter) for parameter in model.parameters()]
    expected = step(model)
    report = tridal.kernelize(model)
    norm = NORMS.get(name, "rms_norm")
    loss = {"cross_entropy", "cross_entropy_backward"} if name not in ("Bert", "T5") else set()
    product = GLUS.get(name)
    products = {product, f"{product}_backward", "rotary_embedding", "rotary_embedding_backward"} if product else set()
    check_step(model, expected, {norm, f"{norm}_backward"} | products | loss, dtype)
    assert list(model.state_dict()) == names
    assert [id(parameter) for parameter in model.parameters()] == order
    report.restore()
    assert ops_of(lambda: step(model)) == set()


def test_weights_of_another_dtype_are_computed_in_the_order_of_the_class(device: torch.device) -> None:
    """T5 rounds to the weight's dtype, LLaMA to the input's."""
    torch.manual_seed(0)
    x = torch.randn(64, 32, device=device)
    for name in ("T5", "Llama", "Gemma"):
        model = build(name).to(device)
        norm = model.encoder.final_layer_norm if name == "T5" else model.model.norm
        for dtypes in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
            norm.to(dtypes[1])
            expected = norm(x.to(dtypes[0]))
            with tridal.kernelize(norm):
                got = norm(x.to(dtypes[0]))
            assert got.dtype is expected.dtype, (name, dtypes)
            # Triton's interpreter truncates to bfloat16, so half of the numbers differ by a rounding.
            torch.testing.assert_close(got, expected, rtol=2**-7, atol=0)


def test_autocast_gives_the_same(device: torch.device) -> None:
    model = build("Qwen3").to(device)
    with torch.autocast(device.type, torch.bfloat16):
        expected = step(model)
        with tridal.kernelize(model):
            got = step(model)
    assert_same_step(got, expected, torch.bfloat16)


def test_report_says_what_was_replaced_and_why_not(device: torch.device) -> None:
    class ScaledRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)

    class GatedRMSNorm(torch.nn.RMSNorm):
        def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x if gate is None else x * gate)

    class OwnSoftmax(torch.nn.Softmax):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    modules = [ScaledRMSNorm(), GatedRMSNorm(8), OwnSoftmax(-1), torch.nn.Softmax(-1), torch.nn.LayerNorm(8)]
    model = torch.nn.Sequential(*modules, tridal.nn.RMSNorm(8), torch.nn.Linear(8, 8)).to(device)
    report = tridal.kernelize(model)
    reasons = {entry.name: entry.reason for entry in report.unchanged}
    assert reasons == {
        "0": pytest.approx(reasons["0"]),
        "1": "its forward takes (x, gate), and a norm takes one tensor",
        "2": "it has its own forward, which is not that of torch.nn.Softmax",
        "5": "it is a module of tridal",
    }
    assert str(reasons["0"]).startswith("it differs from the nearest norm, tridal.")
    assert {entry.name: entry.replaced_by for entry in report.replaced} == {
        "3": "tridal.softmax", "4": "tridal.layer_norm",
    }  # fmt: skip
    assert json.loads(json.dumps(report.as_dict()))["entries"][0]["class_name"] == "ScaledRMSNorm"
    lines = str(report).splitlines()
    assert lines[0] == "Sequential: 2 modules replaced, 4 left unchanged"
    assert max(map(len, lines)) <= 78
    assert f"ScaledRMSNorm (0): left unchanged; {reasons['0']}" in " ".join(str(report).split())
    assert ops_of(lambda: model[3](torch.ones(2, 8, device=device))) == {"softmax"}


def test_second_call_replaces_nothing(device: torch.device) -> None:
    model = build("Llama").to(device)
    first = tridal.kernelize(model)
    second = tridal.kernelize(model)
    assert len(first.replaced) == 6
    assert second.replaced == ()
    assert {entry.reason for entry in second.unchanged} == {
        "it is replaced already; tridal.models.restore(model) undoes it"
    }
    second.restore()
    assert "rms_norm" in ops_of(lambda: step(model)), "the second report restores nothing"
    first.restore()
    first.restore()
    assert ops_of(lambda: step(model)) == set()
    third = tridal.kernelize(model)
    first.restore()
    assert "rms_norm" in ops_of(lambda: step(model)), "a report that has restored its modules restores nothing"
    third.restore()


def test_block_restores_the_model_after_an_exception(device: torch.device) -> None:
    model = build("Llama").to(device)
    classes = [type(module) for module in model.modules()]
    with pytest.raises(RuntimeError, match="the program failed"), tridal.kernelize(model):
        raise RuntimeError("the program failed")
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize(
    ("skip", "skipped"),
    [
        ("model.norm", ["model.norm"]), (["*.input_layernorm"], ["model.layers.0.input_layernorm"]),
        (torch.nn.Linear, []), (["", "model.layers.0.*"], [
            "", "model.layers.0.self_attn", "model.layers.0.mlp", "model.layers.0.input_layernorm",
            "model.layers.0.post_attention_layernorm",
        ]),
    ],
)  # fmt: skip
def test_skipped_modules_are_left_unchanged_and_reported(device: torch.device, skip: Any, skipped: list[str]) -> None:
    report = tridal.kernelize(build("Llama").to(device), skip=skip)
    assert [entry.name for entry in report.unchanged] == skipped
    assert {entry.reason for entry in report.unchanged} <= {"it is skipped"}
    assert len(report.replaced) == 6 - len(skipped)


@pytest.mark.parametrize(
    ("error", "arguments", "options"),
    [
        (TypeError, "gpt2", {}), (TypeError, None, {"fused_loss": 1}), (ValueError, None, {"skip": "norm"}),
        (TypeError, None, {"skip": 3}), (TypeError, None, {"skip": [3]}),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(error: Any, arguments: Any, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"{next(iter(options), 'model')}.*{next(iter(options.values()), 'str')}"):
        tridal.kernelize(arguments or torch.nn.Linear(2, 2), **options)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got str"):
        tridal.models.restore("gpt2")  # type: ignore[arg-type]


def test_model_with_nothing_to_replace_is_reported(device: torch.device) -> None:
    report = tridal.kernelize(torch.nn.Linear(2, 2).to(device))
    assert report.entries == ()
    assert report.notes == (
        "it has no norm, no gated MLP, no rotary embedding, no softmax module and no loss that tridal may compute",
    )


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


def test_hook_of_accelerate_is_named_and_may_be_added_later(device: torch.device) -> None:
    accelerate = pytest.importorskip("accelerate")
    models = [torch.nn.Sequential(torch.nn.LayerNorm(8)).to(device) for _ in range(2)]
    accelerate.cpu_offload(models[0], execution_device=device)
    (entry,) = tridal.kernelize(models[0]).unchanged
    assert str(entry.reason).startswith("another package has replaced its forward by accelerate.hooks.new_forward;")
    model, x = models[1], torch.randn(2, 8, device=device)
    expected = model(x)
    tridal.kernelize(model)
    accelerate.cpu_offload(model, execution_device=device)
    assert ops_of(lambda: torch.testing.assert_close(model(x), expected)) == {"layer_norm"}


def test_quantised_norm_is_refused_with_the_reason() -> None:
    norm = torch.nn.LayerNorm(4)
    norm.weight = torch.nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
    (entry,) = tridal.kernelize(norm).unchanged
    assert "parameters of these dtypes: Parameter of torch.float32, Parameter of torch.int8" in str(entry.reason)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchscript_are_refused_with_the_reason() -> None:
    modules = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Softmax(-1), torch.nn.Linear(4, 4))
    for compiled in (torch.jit.script(modules), torch.jit.trace(modules, torch.ones(2, 4))):
        report = tridal.kernelize(compiled)
        assert [(entry.name, entry.class_name) for entry in report.unchanged] == [("0", "LayerNorm"), ("1", "Softmax")]
        assert {entry.reason for entry in report.entries} == {
            "TorchScript has compiled it, and only modules of Python can be replaced"
        }


def test_note_about_the_interpreter_in_bfloat16(backend: Backend, device: torch.device) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        report = tridal.kernelize(torch.nn.LayerNorm(4, dtype=dtype, device=device))
        if backend.interpreted and dtype is torch.bfloat16:
            (note,) = report.notes
            assert note.startswith(
                "the backend 'interpreter' runs the kernels in Triton's interpreter, which truncates"
            )
        else:
            assert report.notes == ()


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
