"""Models with `fused_loss=True` in threads, with hooks, and after the program has changed something."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import MethodType
from typing import Any

import pytest
import torch

import tridal
from model_helpers import assert_same_step, batch, build, step, transformers
from torch_versions import compiles_transformers

loss_utils: Any = importlib.import_module("transformers.loss.loss_utils")
LLAMA = transformers.LlamaForCausalLM
OURS = LLAMA.forward, torch.nn.Linear.forward


def seven(*_: Any, **__: Any) -> torch.Tensor:
    return torch.tensor(7.0)


def own_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
    outputs = OURS[0](model, *args, **kwargs)
    return type(outputs)(loss=2 * outputs.loss, logits=outputs.logits)


def double(function: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: 2 * function(*args, **kwargs)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {
    "LOSS_MAPPING": lambda patch, _: patch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", seven),
    "loss_function": lambda patch, model: setattr(model, "loss_function", seven),
    "the forward of the class": lambda patch, _: patch.setattr(LLAMA, "forward", own_forward),
    "the forward of the model": lambda patch, model: setattr(model, "forward", MethodType(own_forward, model)),
    "the forward of Linear": lambda patch, _: patch.setattr(torch.nn.Linear, "forward", double(OURS[1])),
    "the forward of the head": lambda patch, model: setattr(model.lm_head, "forward", double(model.lm_head.forward)),
}


def losses_of(model: Any, monkeypatch: pytest.MonkeyPatch, change: Any, call: Any = None) -> list[float]:
    """Returns the loss before and after a change. The gradients of the model exist before it."""
    tokens, call = batch(model.device), model if call is None else call
    before = float(call(**tokens)["loss"].detach())
    with monkeypatch.context() as patch:
        change(patch, model)
        return [before, float(call(**tokens)["loss"].detach())]


@pytest.mark.parametrize(("change", "fused"), [*((name, True) for name in CHANGES), ("LOSS_MAPPING", False)])
def test_changes_after_kernelize_are_used(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str, fused: bool
) -> None:
    expected = losses_of(build("Llama").to(device), monkeypatch, CHANGES[change])
    model = build("Llama").to(device)
    tridal.kernelize(model, fused_loss=fused)
    caplog.clear()
    assert losses_of(model, monkeypatch, CHANGES[change]) == pytest.approx(expected, rel=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3
    messages = [record.getMessage() for record in caplog.records if record.name == "tridal"]
    assert len(messages) == fused
    assert all(message.startswith("the loss of LlamaForCausalLM is not fused: ") for message in messages)


@pytest.mark.parametrize(
    ("name", "setting", "fused_values", "other_values"),
    [
        ("Gemma2", "final_logit_softcapping", (30.0, None), (-2.0,)), ("Granite", "logits_scaling", (1.0,), (0.7,)),
    ],
)  # fmt: skip
def test_settings_of_a_model_may_change(
    device: torch.device, name: str, setting: str, fused_values: Any, other_values: Any
) -> None:
    """A negative softcap is not fused: the model computes it from logits."""
    plain, model = (build(name, **{setting: fused_values[0]}).to(device) for _ in range(2))
    tridal.kernelize(model, fused_loss=True)
    for value in (*fused_values, *other_values):
        for changed in (plain, model):
            setattr(changed.config, setting, value)
        found = step(model)
        assert_same_step(found, step(plain))
        assert (found[0].logits is None) is (value in fused_values)


class OwnForCausalLM(LLAMA):  # type: ignore[misc]
    """A model that changes its logits later."""

    def change(self, logits: Any) -> Any:
        return logits

    def forward(self, input_ids: Any, labels: Any = None, **kwargs: Any) -> Any:
        logits = self.change(self.lm_head(self.model(input_ids, **kwargs).last_hidden_state))
        loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return transformers.modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits)


def in_place(logits: Any) -> Any:
    softcapped = torch.tanh(logits / 0.5) * 0.5
    logits[..., 3] = -7.0
    logits += 1
    return softcapped + logits


USES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "softcap": (lambda x: 0.5 * torch.tanh(x.float() / 0.5).contiguous(), True),
    "shape": (lambda x: x if x.shape == (2, 9, 97) and x.device.type != "meta" else 0 * x, True),
    "two softcaps": (lambda x: (x / 0.5).tanh() * 0.7, False),
    "tensor": (lambda x: x / torch.tensor(0.1, device=x.device), False),
    "in place": (in_place, False),
    "index": (lambda x: torch.cat((x[:, :3], x[:, 3:] * 2), 1), False),
    "functions": (lambda x: torch.stack([torch.where(row > 0, -(1 - row), 0.1 * row) for row in x]), False),
}


def test_a_forward_that_uses_its_logits_later_gets_them(device: torch.device) -> None:
    plain, model = (OwnForCausalLM(build("Llama").config).to(device).train() for _ in range(2))
    model.load_state_dict(plain.state_dict())
    tridal.kernelize(model, fused_loss=True)
    for use, (change, fused) in USES.items():
        plain.change = model.change = change
        found = step(model)
        assert_same_step(found, step(plain))
        assert (found[0].logits is None) is fused, use


@compiles_transformers
def test_a_compiled_forward_uses_its_logits(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a loss function that is changed after the compilation."""
    plain, model = (OwnForCausalLM(build("Llama").config).to(device).train() for _ in range(2))
    model.load_state_dict(plain.state_dict())
    tridal.kernelize(model, fused_loss=True)
    plain.change = model.change = USES["softcap"][0]
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = step(model, compiled)
    assert_same_step(found, step(plain))
    assert found[0].logits is None
    change = CHANGES["loss_function"]
    expected = losses_of(plain, monkeypatch, change)
    assert losses_of(model, monkeypatch, change, compiled) == pytest.approx(expected, rel=1e-5)


def test_threads_compute_the_losses_of_their_own_labels(device: torch.device) -> None:
    model = build("Llama").to(device)
    tridal.kernelize(model, fused_loss=True)
    tokens = batch(device)["input_ids"]
    labels = [tokens.roll(i, 1) for i in range(4)]
    expected = [float(model(input_ids=tokens, labels=these).loss.detach()) for these in labels]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda these: float(model(input_ids=tokens, labels=these).loss.detach()), labels * 3))
    assert found == pytest.approx(expected * 3, rel=1e-5)
    assert len({round(loss, 3) for loss in expected}) == 4


def test_replicas_of_a_model_compute_and_log_the_same(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    def replica_of(model: Any) -> Any:
        """What DataParallel makes of a model for each device: its tensors are no parameters."""
        replicas = {module: module._replicate_for_data_parallel() for module in model.modules()}
        for module, replica in replicas.items():
            replica._modules = {name: replicas[child] for name, child in module._modules.items()}
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                replica.__dict__[name] = None if tensor is None else tensor * 1
        return replicas[model]

    model = build("Llama").to(device)
    expected = step(model)
    tridal.kernelize(model, fused_loss=True)
    caplog.clear()
    for _ in range(2):
        replica = replica_of(model)
        assert_same_step(step(model, replica), expected)
        torch.testing.assert_close(replica(batch(device)["input_ids"]).logits, expected[0].logits)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "tridal"]
    assert "called in training without the keyword argument `labels`" in message


def test_a_hook_that_calls_the_head_gets_logits(device: torch.device) -> None:
    model, seen = build("Llama").to(device), []
    expected = step(model)
    tridal.kernelize(model, fused_loss=True)
    model.model.norm.register_forward_hook(lambda *given: seen.append(model.lm_head(given[-1])))
    found = step(model)
    assert found[0].logits is None
    assert_same_step(found, expected)
    torch.testing.assert_close(seen[0], expected[0].logits)
