"""The loss of causal language models under `tridal.kernelize`, from logits and fused with the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal
from model_helpers import assert_same_step, batch, build, step


@pytest.mark.parametrize(
    ("name", "dtype"), [("Gemma2", torch.float32), ("Mixtral", torch.float32), ("GPT2", torch.bfloat16)]
)
def test_fused_loss_is_the_same_and_has_no_logits(device: torch.device, name: str, dtype: torch.dtype) -> None:
    model = build(name).to(device, dtype)
    if name == "Mixtral":
        model.config._experts_implementation = "eager"
    expected = step(model)
    with tridal.kernelize(model, fused_loss=True) as report:
        outputs, gradients = step(model)
        assert outputs.logits is None
        assert "logits" not in outputs
        assert_same_step((outputs, gradients), expected, dtype)
    by = [entry.replaced_by for entry in report.replaced if entry.class_name == type(model).__name__]
    softcap = ", softcap=30.0" if name == "Gemma2" else ""
    assert by == [f"tridal.linear_cross_entropy for the loss in training{softcap}"]


def test_gradient_of_the_head_is_summed_in_the_dtype_of_its_weight(device: torch.device) -> None:
    """The sum exists from the forward to the backward, at the peak of a step's memory."""
    model, saved = build("Llama").to(device, torch.bfloat16), []
    with (
        tridal.kernelize(model, fused_loss=True),
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),  # type: ignore[func-returns-value]
    ):
        step(model)
    weight = model.lm_head.weight
    sums = [t for t in saved if t.shape == weight.shape and t.data_ptr() != weight.data_ptr()]
    assert [t.dtype for t in sums] == [torch.bfloat16]


@pytest.mark.parametrize("fused", [False, True])
def test_number_of_items_and_shifted_labels_are_respected(device: torch.device, fused: bool) -> None:
    model = build("Llama").to(device)
    tokens = batch(device)["input_ids"]
    arguments: list[dict[str, Any]] = [
        {"labels": tokens, "num_items_in_batch": torch.tensor(5)},
        {"labels": tokens, "num_items_in_batch": 7},
        {"labels": tokens, "shift_labels": tokens.flip(0)},
        {"labels": tokens, "ignore_index": int(tokens[0, 3])},
    ]
    for given in arguments:
        expected = model(input_ids=tokens, **given).loss
        with tridal.kernelize(model, fused_loss=fused), tridal.record_calls() as calls:
            loss = model(input_ids=tokens, **given).loss
        assert ("cross_entropy_with_gradient" if fused else "cross_entropy") in {call.op for call in calls}
        torch.testing.assert_close(loss, expected)


def test_loss_is_fused_only_in_training_with_labels(device: torch.device) -> None:
    model = build("Llama").to(device)
    tokens = batch(device)["input_ids"]
    plain = model(input_ids=tokens, labels=tokens)
    with tridal.kernelize(model, fused_loss=True):
        for outputs in (
            model(input_ids=tokens),
            model(input_ids=tokens, labels=tokens, logits_to_keep=9),
            model.eval()(input_ids=tokens, labels=tokens),
        ):
            torch.testing.assert_close(outputs.logits, plain.logits)
        loss, logits = model.train()(input_ids=tokens, labels=tokens, return_dict=False)[:2]
        torch.testing.assert_close((loss, logits), (plain.loss, plain.logits))


class OwnHead(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("name", "change", "skip", "reason"),
    [
        (
            "Llama",
            lambda head: setattr(head, "__class__", OwnHead),
            (),
            "lm_head, a OwnHead, does not have the forward",
        ),
        ("Llama", lambda head: setattr(head, "forward", head.forward), (), "the output layer: another package has"),
        ("Llama", lambda head: None, "lm_head", "it has no output layer, or it is skipped"),
        ("Cohere", lambda head: None, (), "the model does not compute its loss from lm_head alone"),
    ],
)
def test_head_that_is_not_fused_is_reported(
    device: torch.device, name: str, change: Any, skip: Any, reason: str
) -> None:
    """It is also compared while no backend serves the device. Cohere scales its logits."""
    model = build(name).to(device)
    change(model.lm_head)
    expected = step(model)
    with tridal.use(device="cpu", fallback="error"):
        entry = tridal.kernelize(model, fused_loss=True, skip=skip).entries[0]
    assert_same_step(step(model), expected)
    assert entry.replaced_by == "tridal.cross_entropy for the loss"
    assert str(entry.reason).startswith(f"the loss is not fused: {reason}")


def test_changed_head_is_reported_and_not_fused(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    model = build("Llama").to(device)
    tridal.kernelize(model, fused_loss=True)
    hook = model.lm_head.register_forward_hook(lambda *_: None)
    step(model)
    hook.remove()
    model.resize_token_embeddings(120)
    for _ in range(2):
        assert step(model)[0].logits is not None
    again = "To fuse it again: tridal.models.restore(model), then tridal.kernelize(model, fused_loss=True)"
    assert [record.getMessage() for record in caplog.records if record.name == "tridal"] == [
        "the loss of LlamaForCausalLM is not fused: hooks run in calls of lm_head, and may read logits. Without them, "
        "the loss is fused",
        "the loss of LlamaForCausalLM is not fused: lm_head has changed since the model was kernelized. " + again,
    ]
    tridal.models.restore(model)
    tridal.kernelize(model, fused_loss=True)
    assert step(model)[0].logits is None


def of_mean(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


of_mean.__name__ = "ForCausalLMLoss"
OWN = "loss: it computes its loss in its own forward, not with transformers' loss_function"


@pytest.mark.parametrize(
    ("name", "loss", "reason"),
    [
        ("T5", None, OWN), ("Bert", None, OWN), ("Llama", of_mean, "loss: the loss differs by "),
        ("Llama", lambda logits, labels, **_: 0, "loss: its loss_function is <lambda>, and tridal computes"),
    ],
)  # fmt: skip
def test_model_with_another_loss_is_reported(device: torch.device, name: str, loss: Any, reason: str) -> None:
    model = build(name).to(device)
    if loss is not None:
        model.loss_function = loss
    entries = tridal.kernelize(model, skip="*.*").unchanged
    assert [str(entry.reason).startswith(reason) for entry in entries if entry.name == ""] == [True]
