"""Modulated norms against torch's ops: a scale and a shift per token or per batch, dtypes, strides, and transforms."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal.library.modulated_norm import functions
from tridal.runtime.specialization import KernelCall

Tensor = torch.Tensor
NAMES = ("layer_norm", "rms_norm")
EPS = 1e-5
SHAPES = {
    "per token": (2, 5, 16), "per batch": (2, 1, 16), "for all": (1, 1, 16), "per position": (1, 5, 16),
}  # fmt: skip
each = pytest.mark.parametrize("name", NAMES)


def ours(name: str, x: Tensor, scale: Tensor, shift: Tensor | None = None, *columns: Tensor) -> Tensor:
    function = getattr(tridal, f"modulated_{name}")
    return function(x, scale, x.shape[-1:], *columns, eps=EPS, shift=shift)  # type: ignore[no-any-return]


def theirs(name: str, x: Tensor, scale: Tensor, shift: Tensor | None = None, *columns: Tensor) -> Tensor:
    y = getattr(functional, name)(x, x.shape[-1:], *columns, eps=EPS) * (1 + scale)
    return y if shift is None else y + shift


def leaves(device: torch.device, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(*shape, dtype=dtype, device=device).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("kind", SHAPES)
@each
def test_results_and_gradients_are_those_of_torch(device: torch.device, name: str, kind: str) -> None:
    columns = [(16,)] * (2 if name == "layer_norm" else 1)
    for others in ((), (SHAPES[kind],), (SHAPES[kind], *columns)):
        tensors = leaves(device, (2, 5, 16), SHAPES[kind], *others)
        with tridal.record_calls() as calls:
            y = ours(name, *tensors)
            grad = torch.randn_like(y)
            found = torch.autograd.grad(y, tensors, grad)
        expected = theirs(name, *tensors)
        assert_close(y, expected)
        assert_close(found, torch.autograd.grad(expected, tensors, grad))
        assert {call.op: call.backend for call in calls} == dict.fromkeys(
            (f"modulated_{name}", f"modulated_{name}_backward"), calls[0].backend
        )


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
@each
def test_only_the_gradients_that_are_needed_are_written(
    device: torch.device, name: str, wanted: tuple[int, ...], planned: list[KernelCall]
) -> None:
    tensors = [t.requires_grad_(i in wanted) for i, t in enumerate(torch.randn(3, 4, 1, 24, device=device).double())]
    tensors[0] = torch.randn(4, 9, 24, device=device).double().requires_grad_(0 in wanted)
    chosen = [tensors[index] for index in wanted]
    found, expected = (function(name, *tensors) for function in (ours, theirs))
    grad = torch.randn_like(expected)
    assert_close(*(torch.autograd.grad(y, chosen, grad) for y in (found, expected)))
    problem = next(call.problem for call in planned if call.kernel.name == f"modulated_{name}_backward")
    assert (len(problem.writes), len(problem.column_writes)) == (0 in wanted, len(wanted) - (0 in wanted))


@each
def test_scale_and_shift_may_have_different_shapes(device: torch.device, name: str) -> None:
    for shapes in (((2, 1, 16), (1, 1, 16)), ((2, 1, 16), (2, 5, 16)), ((1, 5, 16), (2, 1, 16)), ((1, 1, 16),) * 2):
        tensors = leaves(device, (2, 5, 16), *shapes)
        found, expected = (function(name, *tensors) for function in (ours, theirs))
        assert_close(found, expected)
        grad = torch.randn_like(expected)
        assert_close(*(torch.autograd.grad(y, tensors, grad) for y in (found, expected)))


@each
def test_second_derivatives_are_those_of_torch(device: torch.device, name: str) -> None:
    tensors = leaves(device, (2, 3, 4), (2, 1, 4), (2, 1, 4), *[(4,)] * (2 if name == "layer_norm" else 1))
    assert torch.autograd.gradgradcheck(lambda *given: ours(name, *given), tensors)


@example(sizes=[(2, 64), (2, 63)], name="layer_norm", per_batch=True)
@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 70)), min_size=2, max_size=4),
    name=st.sampled_from(NAMES), per_batch=st.booleans(),
)  # fmt: skip
def test_calls_with_other_numbers_of_tokens_are_computed_as_their_own(
    backend: Any, sizes: list[tuple[int, int]], name: str, per_batch: bool
) -> None:
    """The number of tokens per batch may differ from that of an earlier call whose number of rows is rounded alike."""
    with tridal.use(backend.name):
        for batch, tokens in sizes:
            x = torch.randn(batch, tokens, 8, device=backend.device_type)
            scale, shift = torch.randn(2, batch, 1 if per_batch else tokens, 8, device=backend.device_type)
            assert_close(ours(name, x, scale, shift), theirs(name, x, scale, shift))


@each
def test_views_of_one_projection_are_read_and_get_their_gradients(device: torch.device, name: str) -> None:
    """A model computes scale and shift as chunks of the last dim of one tensor, and its input may be transposed."""
    modulation = torch.randn(3, 1, 6 * 32, device=device).requires_grad_()
    x = torch.randn(7, 3, 32, device=device).transpose(0, 1).requires_grad_()
    found, expected = [
        function(name, x, *modulation.chunk(6, -1)[1:3]) for function in (ours, theirs)
    ]  # fmt: skip
    assert found.is_contiguous()
    assert_close(found, expected)
    grad = torch.randn_like(x)
    assert_close(*(torch.autograd.grad(y, (x, modulation), grad) for y in (found, expected)))


@each
def test_result_is_rounded_once_to_the_dtype_of_the_input(device: torch.device, name: str) -> None:
    (x,) = leaves(device, (2, 9, 64), dtype=torch.float16)
    scale, shift = leaves(device, (2, 1, 64), (2, 1, 64), dtype=torch.float32)
    y = ours(name, x, scale, shift)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, scale, shift)]
    exact = theirs(name, *wide)
    assert y.dtype is torch.float16
    assert_close(y.double(), exact, rtol=2**-10, atol=1e-5)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, scale, shift), grad)
    assert [tensor.dtype for tensor in found] == [torch.float16, torch.float32, torch.float32]
    for gradient, expected in zip(found, torch.autograd.grad(exact, wide, grad.double()), strict=True):
        assert_close(gradient.double(), expected, rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize("gated", [False, True])
@each
def test_casting_llama_rounds_each_step_as_torch_does(device: torch.device, name: str, gated: bool) -> None:
    """Without a casting, a third of the elements are rounded to another number."""
    x, residual = torch.randn(2, 2, 50, 64, device=device).half()
    scale, shift, gate = torch.randn(3, 2, 1, 64, device=device).half()
    weight = torch.randn(64, device=device).half()
    total = residual + gate * x if gated else x
    n = torch.nn.functional.layer_norm(total, (64,), weight, eps=EPS)
    if name == "rms_norm":
        wide = total.float()
        n = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).half() * weight
    expected, function = n * (1 + scale) + shift, getattr(tridal, f"modulated_{name}")
    options = {"residual": residual, "gate": gate} if gated else {}
    for casting in (None, "llama"):
        found = function(x, scale, (64,), weight, eps=EPS, shift=shift, casting=casting, **options)
        y, *sums = found if gated else (found,)
        assert (float((y != expected).double().mean()) < 0.02) is (casting == "llama")
        assert all(float((found != total).double().mean()) < 0.02 for found in sums if casting)


@each
def test_compiled_functions_and_transforms_compute_the_same(device: torch.device, name: str) -> None:
    x, scale, shift = leaves(device, (4, 3, 20), (4, 1, 20), (4, 1, 20), dtype=torch.float32)
    expected = theirs(name, x, scale, shift)
    torch.compiler.reset()
    compiled = torch.compile(lambda *given: ours(name, *given), backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (3, 2):
        assert_close(compiled(x[:, :tokens], scale, shift), expected[:, :tokens])
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (x, scale, shift), grad)
    assert_close(torch.autograd.grad(compiled(x, scale, shift), (x, scale, shift), grad), gradients)
    batched = torch.func.vmap(lambda *given: ours(name, *given))
    assert_close(batched(x, scale, shift), expected)
    _, tangent = torch.func.jvp(lambda s: ours(name, x, s, shift), (scale,), (scale,))
    assert_close(tangent, theirs(name, x, scale) - theirs(name, x, torch.zeros_like(scale)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"scale": torch.ones(2, 8)},
            r"scale must have the shape \(2, 5, 8\) of input, in which sizes before the last",
        ),
        ({"scale": torch.ones(2, 5, 1)}, "scale must have the shape"),
        ({"shift": torch.ones(2, 3, 8)}, r"shift must have the shape .*, got \(2, 3, 8\)"),
        ({"scale": None}, "scale must be a torch.Tensor, got None"),
        ({"shift": 1.0}, "shift must be a torch.Tensor or None"),
        ({"weight": torch.ones(5)}, r"weight must have the shape \(8,\)"),
        ({"normalized_shape": (5,)}, "normalized_shape must be the last sizes"),
        ({"casting": "gemma"}, "casting must be None or 'llama', got 'gemma'"),
    ],
)
@each
def test_wrong_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    known = {"input": torch.ones(2, 5, 8), "scale": torch.ones(2, 1, 8), "normalized_shape": (8,), **arguments}
    with pytest.raises((TypeError, ValueError), match=f"modulated_{name}: {message}"):
        getattr(tridal, f"modulated_{name}")(**known)


GATES = {"none": None, "per token": (2, 5, 16), "per batch": (2, 1, 16), "for all": (1, 1, 16)}


def with_residual(
    name: str, by_tridal: bool, tensors: list[Tensor | None], columns: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns the modulated norm of residual + gate * input, and the sum."""
    x, scale, shift, residual, gate = tensors
    assert x is not None and scale is not None and shift is not None and residual is not None  # noqa: PT018
    if by_tridal:
        function = getattr(tridal, f"modulated_{name}")
        found = function(x, scale, x.shape[-1:], *columns, eps=EPS, shift=shift, residual=residual, gate=gate)
        return found  # type: ignore[no-any-return]  # noqa: RET504
    total = residual + (x if gate is None else gate * x)
    return theirs(name, total, scale, shift, *columns), total


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("scale", ["per token", "per batch"])
@each
def test_a_residual_and_a_gate_are_those_of_torch(device: torch.device, name: str, scale: str, gate: str) -> None:
    shapes = [(2, 5, 16), SHAPES[scale], SHAPES[scale], (2, 5, 16), GATES[gate]]
    tensors = [None if shape is None else leaves(device, shape)[0] for shape in shapes]
    columns = leaves(device, *[(16,)] * (2 if name == "layer_norm" else 1))
    given = [tensor for tensor in (*tensors, *columns) if tensor is not None]
    expected = with_residual(name, False, tensors, columns)
    with tridal.record_calls() as calls:
        found = with_residual(name, True, tensors, columns)
        grads = [torch.randn_like(result) for result in found]
        gradients = [torch.autograd.grad(found[:count], given, grads[:count], retain_graph=True) for count in (2, 1)]
        of_sum = torch.autograd.grad(found[1], (tensors[0], tensors[3]), grads[1])
    assert_close(found, expected)
    for count, actual in zip((2, 1), gradients, strict=True):
        assert_close(actual, torch.autograd.grad(expected[:count], given, grads[:count], retain_graph=True))
    assert_close(of_sum, torch.autograd.grad(expected[1], (tensors[0], tensors[3]), grads[1]))
    kernels = [call.op for call in calls if call.reason is None]
    assert len(kernels) == (3 if gate == "none" else 4)  # torch passes the gradient of the sum on


@pytest.mark.parametrize("wanted", [(0,), (3,), (4,), (1, 4), (0, 3), (2, 3)])
@each
def test_only_some_gradients_of_a_gated_sum_are_needed(
    device: torch.device, name: str, wanted: tuple[int, ...]
) -> None:
    shapes = ((3, 70, 24), (3, 1, 24), (3, 1, 24), (3, 70, 24), (3, 1, 24))
    tensors: list[Tensor | None] = [t.requires_grad_(i in wanted) for i, t in enumerate(leaves(device, *shapes))]
    chosen = [tensor for index, tensor in enumerate(tensors) if index in wanted and tensor is not None]
    found, expected = (with_residual(name, by_tridal, tensors, []) for by_tridal in (True, False))
    grads = [torch.randn_like(result) for result in expected]
    assert_close(*(torch.autograd.grad(results, chosen, grads) for results in (found, expected)))


@each
def test_a_gated_sum_is_rounded_once_and_then_normalized(device: torch.device, name: str) -> None:
    x, scale, shift, residual, gate = (
        torch.randn(*shape, device=device).bfloat16()
        for shape in ((3, 9, 64), *[(3, 1, 64)] * 2, (3, 9, 64), (3, 1, 64))
    )
    y, total = with_residual(name, True, [x, scale, shift, residual.float(), gate], [])
    exact = residual.double() + gate.double() * x.double()
    assert (y.dtype, total.dtype) == (torch.float32, torch.float32)
    assert_close(total.double(), exact, rtol=1e-6, atol=1e-6)
    y, total = with_residual(name, True, [x, scale, shift, residual, gate], [])
    assert_close(total.double(), exact, rtol=2**-7, atol=2**-8)
    assert_close(y.double(), theirs(name, total.double(), scale.double(), shift.double()), rtol=2**-7, atol=2**-8)


@each
def test_second_derivatives_of_a_gated_sum_are_those_of_torch(device: torch.device, name: str) -> None:
    tensors = leaves(device, (2, 3, 4), (2, 1, 4), (2, 1, 4), (2, 3, 4), (2, 1, 4))
    assert torch.autograd.gradgradcheck(lambda *given: with_residual(name, True, [*given], []), tensors)


@each
def test_a_gated_sum_is_compiled_and_batched(device: torch.device, name: str) -> None:
    tensors = leaves(device, (4, 3, 20), (4, 1, 20), (4, 1, 20), (4, 3, 20), (4, 1, 20), dtype=torch.float32)
    expected = with_residual(name, False, [*tensors], [])
    grads = [torch.randn_like(result) for result in expected]
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *given: with_residual(name, True, [*given], []), backend="aot_eager", fullgraph=True
    )
    found = compiled(*tensors)
    assert_close(found, expected)
    assert_close(*(torch.autograd.grad(results, tensors, grads) for results in (found, expected)))
    assert_close(torch.func.vmap(lambda *given: with_residual(name, True, [*given], []))(*tensors), expected)


@each
def test_known_calls_with_a_gate_have_keys_of_their_own(
    device: torch.device, name: str, no_calls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their function is not computed again, whichever of the other tensors there are."""
    x, scale, shift, residual, gate = leaves(device, (2, 5, 16), (2, 1, 16), (2, 1, 16), (2, 5, 16), (2, 1, 16))
    function = getattr(tridal, f"modulated_{name}")
    calls = [
        lambda given=given: function(x, scale, (16,), shift=given[0], residual=given[1], gate=given[2])
        for given in itertools.product((None, shift), (None, residual), (None, gate))
        if given[1] is not None or given[2] is None
    ]
    expected = [call() for call in calls]
    monkeypatch.setattr(functions, "_compute", None)
    assert_close([call() for call in calls], expected)
    with torch.no_grad(), pytest.raises(TypeError, match="not callable"):
        calls[-1]()


@each
def test_a_gate_needs_a_residual(name: str) -> None:
    function, x = getattr(tridal, f"modulated_{name}"), torch.ones(2, 5, 8)
    for arguments, message in (
        ({"gate": x}, "residual must be a torch.Tensor, because there is a gate, got None"),
        ({"gate": x[:, :2], "residual": x}, "gate must have the shape"),
        ({"gate": 1.0, "residual": x}, "gate must be a torch.Tensor"),
        ({"residual": x[0]}, "residual must have the shape"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"modulated_{name}: {message}"):
            function(x, x, (8,), **arguments)
