"""The loss of causal language models of transformers, computed by tridal from logits or from the head's input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from tridal.library.losses.functions import cross_entropy
from tridal.models.replacements import torch_computes
from tridal.pytorch.torch import private

Tensor = torch.Tensor


def causal_lm_loss(
    theirs: Callable[..., Tensor],
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Computes the loss of transformers' ForCausalLMLoss in float32, without a copy of the logits in float32.

    Args:
        theirs: transformers' function, which computes calls on devices without a backend.
        logits: shape (..., vocab_size).
        labels: shape (...). Position i has the label of position i + 1. Not used if `shift_labels` is given.
        num_items_in_batch: divides the sum of the losses. By default, the number of labels that are not ignored.
        ignore_index, shift_labels: the ignored label, and labels that have been shifted already.
        **kwargs: are ignored, as by transformers' function.
    """
    if torch_computes(logits.device):
        return theirs(
            logits=logits, labels=labels, vocab_size=vocab_size, num_items_in_batch=num_items_in_batch,
            ignore_index=ignore_index, shift_labels=shift_labels, **kwargs,
        )  # fmt: skip
    logits = logits.float() if logits.dtype is torch.float64 else logits
    compute = functools.partial(cross_entropy, logits.view(-1, vocab_size))
    return shifted_loss(compute, logits, labels, shift_labels, num_items_in_batch, ignore_index)


def shifted_loss(
    compute: Callable[..., Any], tensor: Tensor, labels: Tensor | None, shift_labels: Tensor | None,
    num_items_in_batch: Any, ignore_index: int,
) -> Tensor:  # fmt: skip
    """Returns the loss of shifted labels in float32. `compute` takes the labels, and `tensor` is its argument."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.contiguous().to(tensor.device).view(-1)
    kind = tensor.device.type
    scope: Any = nullcontext()
    if tensor.dtype.itemsize <= 2 and not private.autocast_enabled(kind):
        scope = torch.autocast(kind, tensor.dtype)  # the loss is float32 in it, and 16-bit tensors are not cast
    with scope:
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss: Tensor = compute(target, ignore_index=ignore_index, reduction=reduction).float()
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch)
