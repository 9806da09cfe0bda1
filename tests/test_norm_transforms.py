"""rms_norm and layer_norm under derivatives of any order, torch.func, torch.compile, export, modes and settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.func import grad, hessian, jacfwd, vmap
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal.pytorch.torch import private


def rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tridal.rms_norm(x, x.shape[-1:], weight, residual=residual, weight_offset=0.5)


def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tridal.layer_norm(x, x.shape[-1:], weight, weight + 1, residual=residual)


def torch_rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return functional.rms_norm(x + residual, x.shape[-1:], weight + 0.5), x + residual


def torch_layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return functional.layer_norm(x + residual, x.shape[-1:], weight, weight + 1), x + residual


PAIRS = [(rms, torch_rms), (layer, torch_layer)]
NAMES = ["rms_norm", "layer_norm"]


def make(device: torch.device, rows: int = 4, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    sizes = ((rows, 6), (rows, 6), (6,))
    return [torch.randn(size, dtype=dtype, device=device, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("norm", [rms, layer], ids=NAMES)
def test_derivatives_of_first_and_second_order_and_forward_mode(device: torch.device, norm: Callable[..., Any]) -> None:
    tensors = make(device, 2)
    options = {"check_forward_ad": True, "check_batched_grad": True, "fast_mode": True}
    assert torch.autograd.gradcheck(norm, tensors, **options, atol=1e-5)
    assert torch.autograd.gradgradcheck(norm, tensors, fast_mode=True)


@pytest.mark.parametrize(("norm", "expected"), PAIRS, ids=NAMES)
def test_second_derivatives_equal_torch_in_float32(
    device: torch.device, norm: Callable[..., Any], expected: Callable[..., Any]
) -> None:
    tensors = make(device, 3, torch.float32)
    results = []
    for function in (norm, expected):
        first = torch.autograd.grad(function(*tensors)[0].sin().sum(), tensors, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), tensors))
    assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("norm", "expected"), PAIRS, ids=NAMES)
def test_vmap_and_per_sample_gradients(
    device: torch.device, norm: Callable[..., Any], expected: Callable[..., Any]
) -> None:
    x, residual, weight = (tensor.detach() for tensor in make(device))
    batch = torch.randn(4, 5, 6, dtype=torch.float64, device=device)
    weights = torch.randn(5, 6, dtype=torch.float64, device=device)
    for given, dims in (((batch, residual, weight), (1, None, None)), ((x, residual, weights), (None, None, 0))):
        with tridal.record_calls() as calls:
            assert_close(vmap(norm, dims)(*given), vmap(expected, dims)(*given))
        assert all((call.backend == "torch") == (given[2] is weights) for call in calls)
        assert len(calls) == 1 or given[2] is weights, "the batch joins the rows"

    def loss(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        return lambda weight, x: function(x, x * 2, weight)[0].square().sum()

    assert_close(vmap(grad(loss(norm)), (None, 0))(weight, x), vmap(grad(loss(expected)), (None, 0))(weight, x))
    for transform in (hessian, jacfwd):
        assert_close(transform(loss(norm))(weight, x[0]), transform(loss(expected))(weight, x[0]))


@pytest.mark.parametrize(("norm", "expected"), PAIRS, ids=NAMES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_equal_torch(
    device: torch.device, norm: Callable[..., Any], expected: Callable[..., Any], dynamic: bool
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 5):
        tensors = make(device, rows)
        found, wanted = compiled(*tensors), expected(*tensors)
        assert_close(found, wanted)
        dy = [torch.randn_like(result) for result in wanted]
        assert_close(torch.autograd.grad(found, tensors, dy), torch.autograd.grad(wanted, tensors, dy))


@pytest.mark.parametrize("name", NAMES)
def test_one_compilation_serves_all_row_counts(device: torch.device, name: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(getattr(tridal, name), fullgraph=True, dynamic=True, backend=counter)
    for rows in (3, 4, 7):
        x = torch.randn(rows, 6, device=device)
        assert_close(compiled(x, (6,)), getattr(functional, name)(x, (6,)))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", NAMES)
def test_devices_without_a_backend_compile_torchs_function(device: torch.device, name: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    x = torch.randn(3, 6)
    with tridal.use(device="auto"):
        compiled = torch.compile(lambda x: getattr(tridal, name)(x, (6,), residual=x), fullgraph=True, backend=keep)
        assert_close(compiled(x)[0], getattr(functional, name)(2 * x, (6,)))
    assert "tridal" not in graphs[0].code
    assert name in graphs[0].code


def test_devices_without_a_backend_compile_the_reference_if_torch_has_no_function(device: torch.device) -> None:
    torch._dynamo.reset()
    x, weight = torch.randn(3, 6), torch.randn(6)
    with tridal.use(device="auto"):
        compiled = torch.compile(tridal.rms_norm, fullgraph=True, backend="aot_eager")
        for options in ({"casting": "llama"}, {"casting": "gemma", "weight_offset": 1.0, "residual": x}):
            assert_close(compiled(x, (6,), weight, **options), tridal.rms_norm(x, (6,), weight, **options))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_compiled_function_with_dynamic_shapes_names_a_wrong_shape(device: torch.device, name: str) -> None:
    compiled = torch.compile(
        lambda x: getattr(tridal, name)(x, (x.shape[0] + 1,)), fullgraph=True, dynamic=True, backend="eager"
    )
    # torch 2.7 says only that the function raises an exception.
    with pytest.raises(Exception, match=r"normalized_shape has to be the last sizes of the input|Observed exception"):
        compiled(torch.randn(3, 7, device=device))


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_contain_the_op(device: torch.device, name: str, strict: bool) -> None:
    module, x = getattr(tridal.nn, name)(6).to(device), torch.randn(3, 6, device=device)
    rows = torch.export.Dim("rows", min=2, max=100)
    kwargs = {"x" if name == "RMSNorm" else "input": x}
    shapes = {key: {0: rows} for key in kwargs}
    program = torch.export.export(module, (), kwargs, dynamic_shapes=shapes, strict=strict)
    op = getattr(torch.ops.tridal, "rms_norm" if name == "RMSNorm" else "layer_norm").default
    assert [node.target for node in program.graph.nodes if node.target is op] == [op]
    other = torch.randn(7, 6, device=device)
    assert_close(program.module()(**dict.fromkeys(kwargs, other)), module(other))


def test_registered_ops_pass_torchs_checks(device: torch.device) -> None:
    check = torch.library.opcheck
    x, weight = torch.randn(3, 4, 6, device=device).half(), torch.randn(4, 6, device=device, requires_grad=True)
    residual, root = torch.randn_like(x).requires_grad_(), torch.rand(3, device=device)
    ops = torch.ops.tridal
    for given in ((residual, weight), (None, None)):
        check(ops.rms_norm.default, (x.requires_grad_(), *given, 2, 1e-5, 0.5, "llama"))
        check(ops.layer_norm.default, (x, *given, given[1], 2, 1e-5))
    x, weight = x.detach(), weight.detach()
    for mask in itertools.product((True, False), repeat=2):
        check(ops.rms_norm_backward.default, (x, None, x, root, weight, 2, 1e-5, 0.0, list(mask)))
        check(ops.layer_norm_backward.default, (x, x, x, root, root, weight, 2, 1e-5, [*mask, True]))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_follows_torchs_list(device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, kind = getattr(tridal, name), getattr(functional, name), device.type
    x, w = torch.randn(3, 8, device=device, dtype=torch.bfloat16), torch.randn(8, device=device, dtype=torch.bfloat16)
    with torch.autocast(kind, dtype=torch.bfloat16):
        assert ours(x, (8,), w).dtype is theirs(x, (8,), w).dtype
        monkeypatch.setattr(private, "autocasts", lambda op, device_type: (op, device_type) == (name, kind))
        y, total = ours(x, (8,), w, residual=x)
        assert y.dtype is total.dtype is torch.float32
        assert ours(x.double(), (8,)).dtype is torch.float64
    assert_close(y, theirs((x.float() * 2), (8,), w.float()))


def test_autocast_list_is_torchs() -> None:
    assert [private.autocasts(name, "cuda") for name in NAMES] == [
        torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA") for name in NAMES
    ]
    assert not private.autocasts("layer_norm", "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_the_batch_in_batch_invariant_mode(device: torch.device, name: str) -> None:
    x, w = torch.randn(70, 300, device=device), torch.randn(300, device=device)
    with tridal.use(batch_invariant=True):
        whole = getattr(tridal, name)(x, (300,), w)
        for rows in (slice(0, 1), slice(3, 4), slice(5, 40)):
            assert torch.equal(getattr(tridal, name)(x[rows], (300,), w), whole[rows])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_same_in_every_run(device: torch.device, name: str) -> None:
    x, w = torch.randn(500, 64, device=device), torch.randn(64, device=device, requires_grad=True)
    dy = torch.randn_like(x)
    first, second = (torch.autograd.grad(getattr(tridal, name)(x, (64,), w), w, dy)[0] for _ in range(2))
    assert torch.equal(first, second)
