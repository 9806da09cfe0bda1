"""The rows of loss_heads.py: heads that compute log-probabilities of tokens, and what a trainer makes of them.

Heads without a function for log-probabilities compute the loss itself: Liger-Kernel's cross-entropy, DPO and GRPO.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import tridal

BETA, CLIP = 0.01, 0.2
KINDS = ("log_probs", "metrics", "dpo", "grpo", "divergence")
"""The sum of the log-probabilities, the same with entropies and token accuracies, two losses, and a divergence."""
Head = Callable[[], Tensor]
"""A forward, which returns a number to differentiate."""


@dataclass(frozen=True)
class Inputs:
    """The tensors of a step."""

    x: Tensor
    """The input of the head (rows, hidden)."""
    weight: Tensor
    """(classes, hidden)"""
    target: Tensor
    mask: Tensor
    """The rows whose log-probabilities count."""
    advantages: Tensor
    """One number for each sequence, of which there are an even number."""
    ids: Tensor
    teacher_log_probs: Tensor

    @cached_property
    def masked(self) -> dict[str, Any]:
        """The argument `mask` of tridal's functions, if a row is masked."""
        return {} if bool(self.mask.all()) else {"mask": self.mask}

    def of_sequences(self, per_row: Tensor) -> Tensor:
        """Returns numbers of rows as (sequences, length, ...)."""
        return per_row.unflatten(0, (len(self.advantages), -1))


def dpo(inputs: Inputs, log_probs: Tensor) -> Tensor:
    """Direct preference optimization without a reference model. The first half of the sequences is preferred."""
    preferred, rejected = inputs.of_sequences(log_probs).sum(-1).chunk(2)
    return -functional.logsigmoid(BETA * (preferred - rejected)).mean()


def grpo(inputs: Inputs, log_probs: Tensor) -> Tensor:
    """Group relative policy optimization in the first update of a batch, divided by the number of tokens."""
    ratio = (log_probs - log_probs.detach()).exp()
    advantages = inputs.advantages.repeat_interleave(len(ratio) // len(inputs.advantages))
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * inputs.mask).sum() / inputs.mask.sum()


LOSSES: dict[str, Callable[[Inputs, Tensor], Tensor]] = {
    "log_probs": lambda _, log_probs: log_probs.sum(),
    "metrics": lambda _, log_probs: log_probs.sum(),
    "dpo": dpo,
    "grpo": grpo,
}


def naive(inputs: Inputs, metrics: bool) -> Tensor:
    """Returns the log-probabilities (rows,) from all logits, as trainers without a fused head do."""
    logs = (inputs.x @ inputs.weight.t()).float().log_softmax(-1)
    found = torch.where(inputs.mask, logs.gather(-1, inputs.target.unsqueeze(-1)).squeeze(-1), 0.0)
    if metrics:
        with torch.no_grad():
            entropy, correct = -(logs.exp() * logs).sum(-1), logs.argmax(-1) == inputs.target
        return found + 0.0 * (entropy + correct)
    return found


def of_tridal(inputs: Inputs, metrics: bool, **options: Any) -> Any:
    """Returns the log-probabilities by tridal."""
    options |= {"return_entropy": metrics, "return_correct": metrics, **inputs.masked}
    found = tridal.token_log_probs(inputs.x, inputs.weight, inputs.target, **options)
    return found[0] if metrics else found


def of_trl(inputs: Inputs, metrics: bool) -> Tensor:
    """Returns the log-probabilities by the head of TRL's trainers, which get the rows that are kept."""
    from trl.kernels import ChunkedLogProbFunction

    outputs = ("entropy", "is_top1") if metrics else ()
    x, target, mask = inputs.x, inputs.target, inputs.mask
    kept = (x[mask], target[mask]) if inputs.masked else (x, target)
    found = ChunkedLogProbFunction.apply(kept[0], inputs.weight, None, kept[1], 1.0, 32768, None, 1.0, outputs)
    log_probs: Tensor = found[0]
    return torch.zeros(len(x), device=x.device).masked_scatter(mask, log_probs) if inputs.masked else log_probs


def of_trl_from_logits(inputs: Inputs, metrics: bool) -> Tensor:
    """Returns the log-probabilities from logits by the kernel of TRL's `selective_log_softmax`, with entropies."""
    from trl.kernels.logprob_entropy import selective_log_softmax_and_entropy

    logits = inputs.x @ inputs.weight.t()
    log_probs: Tensor = selective_log_softmax_and_entropy(logits, inputs.target, row_mask=inputs.mask)[0]
    return log_probs + 0.0 * (logits.detach().argmax(-1) == inputs.target) if metrics else log_probs


def has_trl() -> bool:
    """Returns whether TRL's kernels can be imported. They need neither datasets nor accelerate."""
    try:
        import trl.kernels
    except ImportError:
        return False
    try:
        import trl.trainer.utils  # noqa: F401
    except ImportError:  # the backward imports one function of it, which gathers weights that ZeRO has sharded
        stand_in: Any = types.ModuleType("trl.trainer.utils")
        stand_in.maybe_gather_lm_head_ctx = lambda *_: nullcontext()
        sys.modules["trl.trainer.utils"] = stand_in
    return True


def of_liger(inputs: Inputs, kind: str) -> Iterator[tuple[str, Head]]:
    """Yields the losses of Liger-Kernel of one kind. They return no log-probabilities."""
    try:
        from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss, LigerFusedLinearGRPOLoss
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return
    x, weight, labels = inputs.x, inputs.weight, inputs.target.masked_fill(~inputs.mask, -100)
    if kind in ("log_probs", "metrics"):
        options: dict[str, Any] = {"reduction": "sum", "accum_dtype": torch.float32}
        if kind == "log_probs":
            sum_of_losses = LigerFusedLinearCrossEntropyLoss(**options)
            yield "Liger-Kernel, only the sum", lambda: -sum_of_losses(weight, x, labels)
        else:
            with_accuracy = LigerFusedLinearCrossEntropyLoss(**options, return_token_accuracy=True)
            yield "Liger-Kernel, only the sum, and the accuracy", lambda: -with_accuracy(weight, x, labels).loss
    elif kind == "dpo":
        loss = LigerFusedLinearDPOLoss(beta=BETA, use_ref_model=False)
        yield "Liger-Kernel", lambda: loss(weight, *map(inputs.of_sequences, (x, labels)))[0]
    elif kind == "grpo":
        of_groups = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, epsilon_low=CLIP, epsilon_high=CLIP)
        given = (*map(inputs.of_sequences, (x,)), weight, *map(inputs.of_sequences, (inputs.target, inputs.mask)))
        yield "Liger-Kernel", lambda: of_groups(*given, inputs.advantages)[0]


def divergences(inputs: Inputs) -> Iterator[tuple[str, Head]]:
    """Yields the divergence to the most probable classes of a teacher, by torch and by tridal."""
    given: dict[str, Any] = {"ids": inputs.ids, "teacher_log_probs": inputs.teacher_log_probs}

    def by_torch() -> Tensor:
        found = (inputs.x @ inputs.weight.t()).float().log_softmax(-1).gather(-1, inputs.ids)
        each = (inputs.teacher_log_probs.exp() * (inputs.teacher_log_probs - found)).sum(-1)
        return each[inputs.mask].sum()

    def by_tridal() -> Tensor:
        found: Any = tridal.token_log_probs(inputs.x, inputs.weight, inputs.target, **given, **inputs.masked)
        return found[-1].sum()  # type: ignore[no-any-return]

    yield from (("torch", by_torch), ("tridal", by_tridal))


def rows(inputs: Inputs, kind: str) -> Iterator[tuple[str, Head]]:
    """Yields the heads of one of `KINDS` with their names."""
    if kind == "divergence":
        yield from divergences(inputs)
        return
    compiled: Any = torch.compile(naive)
    heads: dict[str, Callable[[Inputs, bool], Tensor]] = {"torch": naive, "torch.compile": compiled}
    heads |= {"tridal": of_tridal, "tridal, `save_logits=True`": partial(of_tridal, save_logits=True)}
    if has_trl():
        heads |= {"TRL": of_trl, "TRL, from logits": of_trl_from_logits}
    for name, head in heads.items():
        yield name, lambda head=head: LOSSES[kind](inputs, head(inputs, kind == "metrics"))
    yield from of_liger(inputs, kind)
