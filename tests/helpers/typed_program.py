"""A user's program for type checkers. They must find an error in each line that has "type: ignore", and no other."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import assert_type

import tridal
from tridal.models import Report, kernelize, restore
from tridal.nn import CrossEntropyLoss, LayerNorm, LinearCrossEntropyLoss, LogSoftmax, RMSNorm, Softmax

Pair = tuple[Tensor, Tensor]


def functions(x: Tensor, weight: Tensor, t: Tensor, maybe: Tensor | None, more: bool) -> None:
    assert_type(tridal.softmax(x, 0, mask=maybe, causal=True), Tensor)
    assert_type(tridal.log_softmax(x), Tensor)
    assert_type(tridal.swiglu(x, x), Tensor)
    assert_type(tridal.geglu(x, approximate="tanh"), Tensor)
    assert_type(tridal.rotary_embedding(x, x, x, x), Pair)
    assert_type(tridal.qk_norm_rotary(x, x, x, x, x, x, 1e-6), Pair)
    assert_type(tridal.qk_norm_rotary(x, None, x, None, x, x, weight_offset=1.0), Tensor)
    assert_type(tridal.rotary_embedding(x, None, x, x, interleaved=True), Tensor)
    assert_type(tridal.linear_cross_entropy(x, weight, t, reduction="sum"), Tensor)
    assert_type(tridal.cross_entropy(x, t), Tensor)
    assert_type(tridal.cross_entropy(x, t, weight, softcap=30.0, return_lse=True), Pair)
    assert_type(tridal.cross_entropy(x, t, return_lse=more), Tensor | Pair)
    assert_type(tridal.log_probs(x, t, temperature=2.0), Tensor)
    assert_type(tridal.log_probs(x, t, return_entropy=True), Pair)
    assert_type(tridal.log_probs(x, t, return_entropy=more), Tensor | Pair)
    assert_type(tridal.token_log_probs(x, weight, t, chunk_size=64), Tensor)
    assert_type(tridal.token_log_probs(x, weight, t, linear_bias=maybe, return_entropy=True), Pair)
    assert_type(tridal.token_log_probs(x, weight, t, return_entropy=more), Tensor | Pair)
    assert_type(tridal.token_log_probs(x, weight, t, mask=t > 0, save_logits=True), Tensor)
    assert_type(tridal.token_log_probs(x, weight, t, ids=t, return_correct=more), tuple[Tensor, ...])
    assert_type(tridal.log_probs(x, t, return_correct=True), tuple[Tensor, ...])
    assert_type(tridal.rms_norm(x, (8,), weight), Tensor)
    assert_type(tridal.rms_norm(x, x.shape[1:], casting="llama", residual=x), Pair)
    assert_type(tridal.rms_norm(x, [8], residual=maybe), Tensor | Pair)
    assert_type(tridal.layer_norm(x, (8,), weight, maybe), Tensor)
    assert_type(tridal.layer_norm(x, (8,), residual=x), Pair)
    assert_type(tridal.layer_norm(x, (8,), residual=maybe, weight_offset=1.0), Tensor | Pair)
    assert_type(tridal.gated_rms_norm(x, x, (8,), casting="llama"), Tensor)
    assert_type(tridal.modulated_layer_norm(x, x, (8,), shift=maybe), Tensor)
    assert_type(tridal.modulated_rms_norm(x, x, (8,), residual=x, gate=maybe), Pair)
    assert_type(tridal.modulated_layer_norm(x, x, (8,), residual=maybe), Tensor | Pair)


def modules(x: Tensor, t: Tensor, maybe: Tensor | None) -> None:
    assert_type(Softmax(-1).forward(x), Tensor)
    assert_type(LogSoftmax(-1).forward(x), Tensor)
    assert_type(CrossEntropyLoss(z_loss=1e-4).forward(x, t), Tensor)
    assert_type(LinearCrossEntropyLoss(8, 16).forward(x, t), Tensor)
    for norm in (RMSNorm(8), LayerNorm(8)):
        assert_type(norm.forward(x), Tensor)
        assert_type(norm.forward(x, x), Pair)
        assert_type(norm.forward(x, maybe), Tensor | Pair)


def models(model: torch.nn.Module) -> Report:
    restore(model)
    assert_type(tridal.models.kernelize(model), Report)
    return kernelize(model, skip=(torch.nn.Softmax, "head"))


def others() -> None:
    assert_type(tridal.device(), torch.device)
    assert_type(tridal.ops.per_element("x"), tridal.ops.Argument)
    assert_type(tridal.errors.ShapeError().for_commands(), str)
    assert_type(tridal.registry.get("cuda").name, str)
    assert_type(tridal.run.main(), None)
    assert_type(tridal.testing.cases(tridal.registry.get("cuda")), tuple[tridal.testing.Case, ...])
    with tridal.use(device="auto") as settings, tridal.record_calls() as calls, tridal.override_torch():
        assert_type(settings, tridal.settings.Settings)
        assert_type(calls[0].backend, str)


def wrong(x: Tensor, t: Tensor) -> None:
    tridal.sofmax(x)  # type: ignore[attr-defined]
    tridal.softmax(x, dimension=0)  # type: ignore[call-arg]
    tridal.softmax(x, masked_rows="none")  # type: ignore[arg-type]
    tridal.cross_entropy(x, t, return_lse=True).backward()  # type: ignore[attr-defined]
    tridal.cross_entropy(x, t, reduction="average")  # type: ignore[call-overload]
    tridal.log_probs(x, t, temprature=1.0)  # type: ignore[call-overload]
    tridal.rms_norm(x, (8,), residual=x).sum()  # type: ignore[attr-defined]
    tridal.rms_norm(x, (8,)).summ()  # type: ignore[attr-defined]
    tridal.layer_norm(x, (8,), residual=1)  # type: ignore[call-overload]
    tridal.nn.RMSNorm(8, casting="bert")  # type: ignore[arg-type]
    tridal.nn.RmsNorm(8)  # type: ignore[attr-defined]
    tridal.models.restores(x)  # type: ignore[attr-defined]
    tridal.models.kernelize(x)  # type: ignore[arg-type]
    tridal.ops.per_elements("x")  # type: ignore[attr-defined]
    tridal.testing.run_cases  # type: ignore[attr-defined]  # noqa: B018
    tridal.errors.ShapesError  # type: ignore[attr-defined]  # noqa: B018
    tridal.use(backend="cuda")  # type: ignore[call-arg]
