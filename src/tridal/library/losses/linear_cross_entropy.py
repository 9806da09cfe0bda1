"""Cross-entropy of a linear layer: its maths in torch's ops. The forward computes the gradients, too.

The op's tensors are input (N, H), linear_weight (C, d1, ..., H), and targets of the logits (N, C, d1, ...).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tridal.library.losses import cross_entropy as maths
from tridal.ops.arguments import DTYPE, Argument, Result, number, whole
from tridal.ops.op import Op
from tridal.ops.row_reduce import accumulator

Tensor = torch.Tensor


def logits_of(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns the logits (N, C, d1, ...), computed in `dtype`."""
    matrix = linear_weight.flatten(0, -2).to(dtype)
    bias = None if linear_bias is None else linear_bias.flatten().to(dtype)
    return functional.linear(input.to(dtype), matrix, bias).view(input.shape[0], *linear_weight.shape[:-1])


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, weight: Tensor | None,
    reduction: int, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None,
    dtype: torch.dtype, matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int, needs: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the loss in `dtype`. It computes all logits at once, and no gradients: autograd differentiates it."""
    logits = logits_of(input, linear_weight, linear_bias, matmul_dtype)
    numbers = (reduction, ignore_index, label_smoothing, z_loss, softcap, dtype)
    return maths.reference(logits, target, weight, *numbers)[0], None, None, None, None


def gradient(
    grad: Tensor | None, input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None,
    weight: Tensor | None, input_grad: Tensor | None, weight_grad: Tensor | None, bias_grad: Tensor | None,
    denominator: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int, needs: list[bool],
    output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of input, weight and bias. It computes all logits again, and reads no saved gradient."""
    assert grad is not None
    logits = logits_of(input, linear_weight, linear_bias, matmul_dtype)
    numbers = (ignore_index, label_smoothing, z_loss, softcap)
    lse = logits.sum(1, dtype=accumulator(logits, target, weight))  # its shape and dtype: `gradient` computes it
    _, total = maths.reduce_rows(lse, target, weight, reduction, ignore_index)
    dlogits, _ = maths.gradient(grad, None, logits, target, weight, lse, total, reduction, *numbers, [True, False])
    assert dlogits is not None
    dlogits = dlogits.flatten(1)
    matrix = linear_weight.flatten(0, -2).to(matmul_dtype)
    return (
        (dlogits @ matrix).to(input.dtype) if output_mask[0] else None,
        (dlogits.t() @ input.to(matmul_dtype)).view(linear_weight.shape) if output_mask[1] else None,
        dlogits.sum(0).view(linear_weight.shape[:-1]) if output_mask[2] else None,
    )


_NUMBERS = (
    Argument("matmul_dtype", "ScalarType"), Argument("accum_dtype", "ScalarType"), number("chunk_size", type="int"),
    Argument("needs", "bool[]"),
)  # fmt: skip
LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    arguments=(
        whole("input", differentiable=True), whole("linear_weight", differentiable=True), whole("target"),
        whole("linear_bias", optional=True, differentiable=True), whole("weight", optional=True), *maths.NUMBERS, DTYPE,
        *_NUMBERS,
    ),
    results=(
        Result("loss", "whole", gradient="grad"), Result("input_grad", "whole", optional=True),
        Result("weight_grad", "whole", optional=True), Result("bias_grad", "whole", optional=True),
        Result("denominator", "whole", optional=True),
    ),
    kernels=(),
    reference=reference,
    gradient=gradient,
    saves=(
        "input", "linear_weight", "target", "linear_bias", "weight", "input_grad", "weight_grad", "bias_grad",
        "denominator",
    ),
    gradient_numbers=(*maths.NUMBERS, *_NUMBERS),
    of_rows=False,
    cases="tridal.library.losses.linear_cases:cases",
)  # fmt: skip
"""It has no kernels of its own: it runs torch's matmul and the kernels of cross-entropy."""
