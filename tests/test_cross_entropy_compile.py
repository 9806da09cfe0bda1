"""The losses in torch.compile and torch.export, their kernels for other architectures, and their modules."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.devices.types import KernelConfig
from tridal.library.losses import cross_entropy as maths
from tridal.runtime import compiler
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall

pytest.importorskip("triton")

TARGET = torch.tensor([1, -100, 5, 0])


def plain(x: torch.Tensor, target: torch.Tensor) -> Any:
    return tridal.cross_entropy(x, target, label_smoothing=0.1, z_loss=0.1, return_lse=True)


def inplace(x: torch.Tensor, target: torch.Tensor) -> Any:
    return (tridal.cross_entropy(x * 2, target, inplace_backward=True),)


def linear(x: torch.Tensor, target: torch.Tensor) -> Any:
    return (tridal.linear_cross_entropy(x, x.cos(), target.clamp(max=2), chunk_size=2),)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [plain, inplace, linear])
def test_compiled_functions_equal_eager_ones(device: torch.device, function: Any, dynamic: bool) -> None:
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 3) if dynamic else (4,):
        x, target = torch.randn(rows, 7, device=device, requires_grad=True), TARGET[:rows].to(device)
        ours, eager = compiled(x, target), function(x, target)
        assert_close(ours, eager)
        grads = [torch.randn_like(result) for result in eager]
        assert_close(torch.autograd.grad(ours, x, grads), torch.autograd.grad(eager, x, grads))


def test_exported_programs_contain_one_op(device: torch.device) -> None:
    class Loss(torch.nn.Module):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return tridal.cross_entropy(x, target)  # type: ignore[return-value]

    x, target = torch.randn(4, 7, device=device), TARGET.to(device)
    program = torch.export.export(Loss(), (x, target))
    assert sum("tridal" in str(node.target) for node in program.graph.nodes) == 1
    assert_close(program.module()(x, target), tridal.cross_entropy(x, target))


@pytest.mark.parametrize(
    ("absent", "softcap"),
    [((), 30.0), (("weight", "weight_sum", "label_smoothing", "z_loss"), None)],
    ids=["all arguments", "no arguments"],
)
@pytest.mark.parametrize(
    "config",
    [
        KernelConfig("whole_row", 1, 1024, peel=True),
        KernelConfig("cooperative", 1, 256, programs_per_row=4),
        KernelConfig("column_loop", 1, 256),
    ],
    ids=lambda config: config.schedule,
)
def test_kernels_compile_for_cuda(config: KernelConfig, absent: tuple[str, ...], softcap: float | None) -> None:
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    for kernel in maths.CROSS_ENTROPY.kernels:
        can_be_absent = (*kernel.column_reads, *(kernel.parameters if len(kernel.parameters) > 1 else ()))
        constants = [(name, None) for name in absent if name in can_be_absent]
        base = next(k for k in vars(maths).values() if getattr(k, "name", None) == kernel.name and k is not kernel)
        options = (("IGNORE_INDEX", -100), ("CLASSES", 1000), *constants)
        bound = maths.bound(base, softcap, options)
        kinds = {"index_ptr": "int64", "out_ptr": "bfloat16", "in_ptr": "bfloat16", "in2_ptr": "bfloat16"}
        dtypes = tuple(kinds.get(pointer, "float32") for pointer in bound.pointers)
        call = KernelCall(bound, layout, dtypes, (), (0.1,) * len(bound.parameters))
        compiled = compiler.compile_kernel(call.specialize(config), ("cuda", 90, 32))
        assert "st.global" in compiled.asm["ptx"]


def test_modules_equal_the_functions_and_share_state_dicts_with_torch(device: torch.device) -> None:
    x, target = torch.randn(4, 7, device=device), TARGET.to(device)
    weight = torch.rand(7, device=device)
    module = tridal.nn.CrossEntropyLoss(weight, label_smoothing=0.1, z_loss=0.1)
    theirs = torch.nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    assert isinstance(module, torch.nn.CrossEntropyLoss)
    assert_close(module(x, target), tridal.cross_entropy(x, target, weight, label_smoothing=0.1, z_loss=0.1))
    theirs.load_state_dict(module.state_dict())
    names = list(inspect.signature(torch.nn.CrossEntropyLoss).parameters)
    assert list(inspect.signature(tridal.nn.CrossEntropyLoss).parameters)[: len(names)] == names
    assert repr(copy.deepcopy(module)) == "CrossEntropyLoss(z_loss=0.1)"


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_linear_module_equals_torch(device: torch.device, outputs: tuple[int, ...]) -> None:
    x = torch.randn(4, 5, device=device)
    target = torch.randint(7, (4, *outputs), device=device)
    module = tridal.nn.LinearCrossEntropyLoss(5, 7, out_features=outputs, bias=True, device=device)
    expected = tridal.linear_cross_entropy(
        x, module.linear.weight.view(7, *outputs, 5), target, linear_bias=module.linear.bias.view(7, *outputs)
    )
    assert_close(module(x, target), expected)
    if hasattr(torch.nn, "LinearCrossEntropyLoss"):
        theirs = torch.nn.LinearCrossEntropyLoss(5, 7, out_features=outputs, bias=True, device=device)
        theirs.load_state_dict(module.state_dict())
        assert isinstance(module, torch.nn.LinearCrossEntropyLoss)
        assert_close(theirs(x, target), expected)
    with pytest.raises(RuntimeError, match=r"expected weight shape to be \(7,\)"):
        tridal.nn.LinearCrossEntropyLoss(5, 7, weight=torch.ones(3))


def test_a_gradient_of_the_lse_alone_is_zero_for_probabilities(device: torch.device) -> None:
    """The registered op of the gradient returns a tensor for each gradient that autograd asks for."""
    x, p = (torch.rand(3, 4, device=device, requires_grad=True) for _ in range(2))
    grads = torch.randn(2, 3, device=device)

    def lse(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return tridal.cross_entropy(x, p, return_lse=True)[1]

    eager = torch.autograd.grad(lse(x, p), (x, p), grads[0])
    assert_close(eager, (torch.softmax(x, 1) * grads[0].unsqueeze(1), torch.zeros_like(p)))
    compiled = torch.compile(lse, backend="aot_eager")
    assert_close(torch.autograd.grad(compiled(x, p), (x, p), grads[0]), eager)
    batched = torch.autograd.grad(lse(x, p), (x, p), grads, is_grads_batched=True)
    assert_close([gradient[0] for gradient in batched], list(eager))


@pytest.mark.parametrize("dim", [0, 1], ids=["batch", "classes"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_linear_loss_is_exported_with_dynamic_sizes(device: torch.device, strict: bool, dim: int) -> None:
    class Loss(torch.nn.Module):
        def forward(self, input: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return tridal.linear_cross_entropy(input, weight, target)

    def arguments(rows: int, classes: int) -> tuple[torch.Tensor, ...]:
        target = torch.arange(rows, device=device) % classes
        return torch.randn(rows, 6, device=device), torch.randn(classes, 6, device=device), target

    size = {0: torch.export.Dim("size", min=2, max=99)}
    shapes = (size, None, size) if dim == 0 else (None, size, None)
    exported = torch.export.export(Loss(), arguments(4, 9), dynamic_shapes=shapes, strict=strict).module()
    for sizes in ((4, 9), (7, 9) if dim == 0 else (4, 13)):
        given = arguments(*sizes)
        assert_close(exported(*given), Loss()(*given))


@pytest.mark.parametrize("kind", ["logits", "permuted", "probabilities", "weight"])
def test_fake_gradients_have_the_strides_of_the_real_ones(device: torch.device, kind: str) -> None:
    x, target = torch.randn(5, 7, device=device, requires_grad=True), torch.arange(7, device=device) % 5

    def function(x: torch.Tensor) -> Any:
        doubled = (x * 2).t()
        if kind == "weight":
            return tridal.linear_cross_entropy(x.new_ones(5, 5), doubled, target[:5])
        if kind == "permuted":
            return tridal.cross_entropy(doubled.unsqueeze(2), target[:, None])
        return tridal.cross_entropy(doubled, doubled.softmax(1) if kind == "probabilities" else target)

    (eager,) = torch.autograd.grad(function(x), x)
    (compiled,) = torch.autograd.grad(torch.compile(function)(x), x)
    assert_close(compiled, eager)


def test_a_scripted_loss_refuses_what_torchs_function_does_not_have() -> None:
    x, target = torch.randn(4, 7), torch.zeros(4, dtype=torch.int64)
    for module in (tridal.nn.CrossEntropyLoss(z_loss=0.1), tridal.nn.CrossEntropyLoss(softcap=2.0)):
        with pytest.raises(torch.jit.Error, match="TorchScript has torch's loss"):
            torch.jit.script(module)(x, target)
