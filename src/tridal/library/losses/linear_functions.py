"""Cross-entropy of a linear layer: the public function."""

from __future__ import annotations

from typing import Any, Literal

import torch

from tridal.library.losses.functions import result_dtype
from tridal.library.losses.linear_checks import check_linear, matmul_dtype_of
from tridal.library.losses.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from tridal.library.losses.maths import REDUCTIONS
from tridal.pytorch import (
    autocast_enabled,
    check_tensors,
    is_distributed,
    op_function,
    records_gradient,
    reference,
    saves_through_hooks,
    tracing_state,
    transforms_active,
)

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling
_TENSORS = ("input", "linear_weight", "target", "linear_bias", "weight")


@op_function(LINEAR_CROSS_ENTROPY)
def linear_cross_entropy(
    call: Any,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    chunk_size: int | None = None,
    accum_dtype: torch.dtype | None = None,
    stream: Any = None,
) -> Tensor:
    """cross_entropy(linear(input, linear_weight, linear_bias), target), without the memory of the logits.

    Args:
        input: shape (H,), (N, H) or (B, T, H).
        linear_weight: shape (C, H), or (C, d1, ..., H) for the logits (N, C, d1, ...).
        target: indices of shape (), (N,), (B, T) or (N, d1, ...), in int64 or uint8; or probabilities of the shape of
            the logits, (C,), (N, C), (B, T, C) or (N, C, d1, ...).
        linear_bias: shape (C,) or (C, d1, ...).
        weight: a factor for each class, of shape (C,).
        ignore_index: None is -100 for indices. It cannot be given for probabilities.
        reduction, label_smoothing, z_loss, softcap: see `tridal.cross_entropy`.
        chunk_size: the number of rows whose logits exist at the same time. By default, it follows from shapes and
            dtypes. With "mean" and "sum", the forward computes the gradients of the arguments that need one; with
            "none", the backward computes the logits again.
        accum_dtype: the dtype in which gradients of the weight and the bias are summed over chunks; float32 by default
            (float64 for float64). 16 bits save memory: the sum takes half of the bytes, and default chunks are smaller.
        stream: see `tridal.softmax`. Matmuls and the backward use it, too.

    Returns:
        The loss in the dtype of the logits; in torch's promoted dtype for probabilities; in float32 under autocast.
        With reduction "none", one for each target index, or for each row of probabilities.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, IndexError, StreamError: an argument is wrong, see
            `tridal.cross_entropy`.

    Example:
        >>> hidden, weight = torch.eye(2, 3), torch.eye(4, 3, requires_grad=True)
        >>> loss = tridal.linear_cross_entropy(hidden, weight, torch.tensor([0, 3]))
        >>> loss.backward()
        >>> weight.grad.shape
        torch.Size([4, 3])
    """
    given = (input, linear_weight, target, linear_bias, weight)
    options: dict[str, Any] = {
        "linear_bias": linear_bias, "weight": weight, "reduction": reduction, "ignore_index": ignore_index,
        "label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap, "chunk_size": chunk_size,
        "accum_dtype": accum_dtype,
    }  # fmt: skip
    check_tensors(LINEAR_CROSS_ENTROPY.signature, **dict(zip(_TENSORS, given, strict=True)))
    autocast = autocast_enabled(input.device.type)
    ignored = -100 if ignore_index is None else ignore_index
    x, flat_target = check_linear(LINEAR_CROSS_ENTROPY.name, input, linear_weight, target, options, autocast)
    if flat_target.dtype is torch.uint8:
        flat_target = flat_target.long()  # an ignore_index of -100 would wrap to 156
    matmul_dtype = matmul_dtype_of(input, autocast)
    dtype = result_dtype(matmul_dtype, target, weight, autocast)
    wide = torch.promote_types(matmul_dtype, torch.float32)
    needs = [records_gradient(tensor) for tensor in (input, linear_weight, linear_bias)]
    arguments = (
        x, linear_weight, flat_target, linear_bias, weight, REDUCTIONS[reduction], ignored, float(label_smoothing),
        float(z_loss), None if softcap is None else float(softcap), dtype, matmul_dtype, accum_dtype or wide,
        chunk_size or 0, needs if reduction != "none" else [False] * 3,
    )  # fmt: skip
    # A transform hides the placements of its tensors, and `call` computes it with torch's ops.
    if is_distributed(*given) and (_compiling() or not transforms_active()):
        from tridal.library.losses.dtensor import linear_cross_entropy as distributed

        loss: Tensor | None = distributed(LINEAR_CROSS_ENTROPY.signature.named(arguments))
    elif not _compiling() and tracing_state() is not None:
        # torch.jit.trace does not support lists of bools
        loss = reference(LINEAR_CROSS_ENTROPY, LINEAR_CROSS_ENTROPY.signature, arguments)[0]
    else:
        # A hook may keep the saved gradients, so the backward must not overwrite them.
        overwrites = not _compiling() and not saves_through_hooks()
        loss = call(*arguments, overwrites=overwrites, checked=True)
    assert loss is not None
    return loss if reduction != "none" else loss.view((*input.shape[:-1], *linear_weight.shape[1:-1]))
