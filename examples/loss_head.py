"""A loss head for trainers: log-probabilities, entropies and token accuracy of labels, without the logits.

`add_loss_head(model)` serves the trainers of TRL, which call the model with `fused_lm_head=True`. `LossHeadTrainer`
makes the same call in the trainer of transformers. train_with_a_trainer.py trains with both, and needs the extra
`trainers`: pip install 'tridal[trainers]'.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.utils import ModelOutput

import tridal


@dataclass
class TokenOutput(ModelOutput):  # type: ignore[misc]
    """The results of a head, by the names that TRL uses. Those of tokens are 0 where the label is -100."""

    loss: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    is_top1: torch.Tensor | None = None
    label_mask: torch.Tensor | None = None
    mean_logits: torch.Tensor | None = None
    aux_loss: torch.Tensor | None = None


def add_loss_head(model: Any, temperature: float = 1.0, **options: Any) -> None:
    """Makes model(..., labels=labels, fused_lm_head=True) return a `TokenOutput`. Other calls do not change.

    Args:
        model: a causal language model of transformers, of which a trainer has been made.
        temperature: that of the trainer, such as `GRPOConfig.temperature`.
        options: `chunk_size`, `accum_dtype` and `save_logits` of `tridal.token_log_probs`.
    """
    unchanged, softcap = model.forward, getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    @functools.wraps(type(model).forward)
    def forward(*args: Any, fused_lm_head: bool = False, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        if not fused_lm_head:
            if num_items_in_batch is not None:
                inputs["num_items_in_batch"] = num_items_in_batch
            return unchanged(*args, **inputs)
        targets, head = inputs.pop("labels")[:, 1:], model.get_output_embeddings()
        if not head.weight.numel():
            raise NotImplementedError("ZeRO has sharded the weight of the head: use the head of the trainer")
        if hasattr(head.weight, "device_mesh") and hasattr(head, "unshard"):
            head.unshard()  # FSDP2 gathers the weight, and shards it and its gradient in the backward
        hidden = model.base_model(*args, **{**inputs, "use_cache": False}).last_hidden_state[:, :-1]
        mask = targets != -100
        log_probs, entropy, correct = tridal.token_log_probs(
            hidden, head.weight, targets, linear_bias=head.bias, mask=mask, temperature=temperature, softcap=softcap,
            return_entropy=True, return_correct=True, **options,
        )  # fmt: skip
        loss = -log_probs.sum() / (mask.sum().clamp_min(1) if num_items_in_batch is None else num_items_in_batch)
        with torch.no_grad():  # the mean of a row's logits is the product with the mean of the weight's rows
            mean_logits = hidden.float() @ head.weight.float().mean(0) / temperature * mask
        if not loss.requires_grad and hasattr(head, "reshard"):
            head.reshard()
        return TokenOutput(loss, log_probs, entropy, correct, mask, mean_logits)

    model.forward = forward


class LossHeadTrainer(transformers.Trainer):  # type: ignore[misc]
    """A trainer of a model with a loss head. It logs the mean entropy and the accuracy of the tokens, too."""

    token_metrics: dict[str, torch.Tensor] = {}  # noqa: RUF012

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:  # fmt: skip
        """Returns the loss, and with `return_outputs` the results of the head."""
        found = model(**inputs, fused_lm_head=True, num_items_in_batch=num_items_in_batch)
        count = found.label_mask.sum().clamp_min(1)
        self.token_metrics = {"entropy": found.entropy.detach().sum() / count, "accuracy": found.is_top1.sum() / count}
        return (found.loss, found) if return_outputs else found.loss

    def log(self, logs: dict[str, float], *args: Any) -> None:
        """Adds the metrics of the last batch."""
        super().log(logs | {name: metric.item() for name, metric in self.token_metrics.items()}, *args)
