"""The losses in compiled and exported programs beyond what every op does, and their kernels for other architectures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

import tridal
from tridal.devices.types import KernelConfig
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.runtime import compiler
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall

pytest.importorskip("triton")


def test_kernels_compile_for_cuda() -> None:
    """With all tensors, numbers and a softcap. The tests of backends compile the kernels of ordinary calls."""
    layout, config = row_layout((64, 1000), (1000, 1), 1), KernelConfig("column_loop", 1, 256)
    assert layout is not None
    for kernel in CROSS_ENTROPY.kernels:
        bound = replace(kernel, neutral_padding=False).bind(SOFTCAP=30.0, IGNORE_INDEX=-100)
        kinds = {f"{bound.row_index}_ptr": "int64", **dict.fromkeys(bound.element_pointers, "bfloat16")}
        dtypes = tuple(kinds.get(pointer, "float32") for pointer in bound.pointers)
        call = KernelCall(bound, layout, dtypes, (), (0.1,) * len(bound.parameters))
        compiled = compiler.compile_kernel(call.specialize(config), ("cuda", 90, 32))
        assert "st.global" in compiled.asm["ptx"]


def test_a_gradient_of_the_lse_alone_is_zero_for_probabilities(device: torch.device) -> None:
    """The registered op of the gradient returns a tensor for each gradient that autograd asks for, a call None."""
    x, p = (torch.rand(3, 4, device=device, requires_grad=True) for _ in range(2))
    grads = torch.randn(2, 3, device=device)

    def lse(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return tridal.cross_entropy(x, p, return_lse=True)[1]

    for _ in range(2):  # the first call is new
        eager = torch.autograd.grad(lse(x, p), (x, p), grads[0], materialize_grads=True)
    assert_close(eager, (torch.softmax(x, 1) * grads[0].unsqueeze(1), torch.zeros_like(p)))
    batched = torch.autograd.grad(lse(x, p), (x, p), grads, is_grads_batched=True)
    assert_close([gradient[0] for gradient in batched], list(eager))


def test_a_linear_loss_is_exported_with_a_dynamic_number_of_classes(device: torch.device) -> None:
    class Loss(torch.nn.Module):
        def forward(self, input: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return tridal.linear_cross_entropy(input, weight, target)

    x, target = torch.randn(4, 6, device=device), torch.arange(4, device=device)
    classes = {0: torch.export.Dim("classes", min=2, max=99)}
    weights = [torch.randn(size, 6, device=device) for size in (9, 13)]
    exported = torch.export.export(Loss(), (x, weights[0], target), dynamic_shapes=(None, classes, None)).module()
    for weight in weights:
        assert_close(exported(x, weight, target), Loss()(x, weight, target))


@pytest.mark.parametrize("kind", ["logits", "permuted", "probabilities", "weight"])
def test_fake_gradients_have_the_strides_of_the_real_ones(device: torch.device, kind: str) -> None:
    def gradient(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = x.t().requires_grad_()
        if kind == "weight":
            loss = tridal.linear_cross_entropy(x.detach().t() @ x.detach(), x, target)
        elif kind == "permuted":
            loss = tridal.cross_entropy(x.unsqueeze(2), target[:, None])
        else:
            loss = tridal.cross_entropy(x, x.detach().softmax(1) if kind == "probabilities" else target)
        return torch.autograd.grad(loss, x)[0]

    x, target = torch.randn(5, 5, device=device), torch.arange(5, device=device)
    with FakeTensorMode() as mode:
        fake = gradient(mode.from_tensor(x), mode.from_tensor(target))
    assert fake.stride() == gradient(x, target).stride()
