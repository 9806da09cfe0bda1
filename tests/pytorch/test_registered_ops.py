"""The registered ops: torch's own checks of them, and what modes, tracers and tensor subclasses see."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils._pytree import tree_map_only

import tridal
from op_samples import (
    EACH,
    EACH_OP,
    KINDS,
    OPS,
    SKIP_NORM,
    Sample,
    as_tuple,
    each_kind,
    gradients,
    loss_of,
    registered_calls,
)

EACH_KIND = each_kind("this test with an op that is declared in the same way, and test_opcheck with this op")
CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@EACH_OP
@pytest.mark.parametrize("served", [True, False])
def test_opcheck(device: torch.device, sample: Sample, served: bool, request: pytest.FixtureRequest) -> None:
    """With each set of gradients that autograd may need. By day, only `KINDS` are compiled."""
    every = request.config.getoption("--matrix") or (served and sample.op.name in KINDS)
    checks = CHECKS if every else CHECKS[:2]
    tensors = sample.leaves(3, 4, 5, dtype=torch.float32, device=device)
    calls = registered_calls(lambda: loss_of(sample.function(**tensors)).backward())
    place = device if served else torch.device("cpu")
    (forward, given), (backward, saved) = (
        (op, tuple(a.to(place) if isinstance(a, torch.Tensor) else a for a in arguments))
        for op, arguments in calls.values()
    )
    saved = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in saved)
    masks = [*itertools.product((True, False), repeat=len(saved[-1]))][:-1] if isinstance(saved[-1], list) else []
    kinds = (*["test_schema"] * (sample.op is not SKIP_NORM), *checks)  # it reads no default before another argument
    with tridal.use(device=None if served else "auto"):
        torch.library.opcheck(forward, given, test_utils=("test_schema", *checks))
        torch.library.opcheck(backward, saved, test_utils=kinds)
        for mask in masks if served else ():
            torch.library.opcheck(backward, (*saved[:-1], list(mask)), test_utils="test_faketensor")


@pytest.mark.parametrize(("kind", "requires_grad"), [(torch.bool, True), (torch.float32, False)])
def test_opcheck_with_masks(device: torch.device, kind: torch.dtype, requires_grad: bool) -> None:
    x = torch.randn(2, 3, 4, 5, device=device).transpose(0, 1).requires_grad_(requires_grad)
    mask = (torch.rand(2, 4, 1, device=device) > -1).to(kind)
    dim, causal = (-1, True) if requires_grad else (1, False)
    torch.library.opcheck(torch.ops.tridal.softmax, (x, dim, torch.float32, mask, 0.5, causal, True))
    g = torch.randn(4, 5, device=device, requires_grad=requires_grad)
    torch.library.opcheck(torch.ops.tridal.softmax_backward, (g, g.detach().softmax(-1), -1, torch.float32, 0.5))


@EACH_OP
def test_fake_and_meta_results_are_like_real_ones(device: torch.device, sample: Sample) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float16, device=device).transpose(0, 2)
    results = as_tuple(sample.function(**sample.tensors(x)))
    with FakeTensorMode() as mode:
        fake = as_tuple(sample.function(**sample.tensors(mode.from_tensor(x))))
    meta = as_tuple(sample.function(**sample.tensors(x.to("meta"))))
    assert [(t.stride(), t.device) for t in fake] == [(t.stride(), t.device) for t in results]
    for found in (fake, meta):
        assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in results]
    assert {t.device.type for t in meta} == {"meta"}


@EACH_KIND
@pytest.mark.parametrize("mode", ["symbolic", "jit"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracers_record_the_op(device: torch.device, sample: Sample, mode: str) -> None:
    x, other = torch.randn(2, 3, 5, dtype=torch.float64, device=device)
    if mode == "jit":
        traced = torch.jit.trace(lambda x: sample.ours(x), (x,))
        names = [node.kind() for node in traced.graph.nodes()]
    else:
        traced = make_fx(lambda x: sample.ours(x), tracing_mode=mode)(x)
        names = [str(node.target).replace(".", "::").removesuffix("::default") for node in traced.graph.nodes]
    assert f"tridal::{sample.op.name}" in names or (mode == "jit" and not sample.op.prepares)
    assert_close(traced(other), sample.theirs(other))


@EACH
def test_dispatch_modes_see_the_op_and_the_gradients_that_are_needed(device: torch.device, sample: Sample) -> None:
    for needed in sample.differentiable:
        tensors = {n: t.requires_grad_(n == needed) for n, t in sample.leaves(3, 5, device=device).items()}
        calls = registered_calls(lambda tensors=tensors: loss_of(sample.function(**tensors)).backward())
        assert list(calls) == [sample.op.name, f"{sample.op.name}_backward"]
        groups, arguments = sample.op.gradient_groups, calls[f"{sample.op.name}_backward"][1]
        of_one = {"_swiglu_of_columns": [True, False], "_rotary_of_elements": [True, True]}  # one tensor has both
        wanted = of_one.get(getattr(sample.function, "__name__", ""), [needed in names for names in groups])
        assert len(groups) == 1 or arguments[-1] == wanted
        assert_close(tensors[needed].grad, gradients(sample.expected, tensors)[needed])


class Wrapper(torch.Tensor):
    """A wrapper subclass that applies each op to the tensor in `held`."""

    held: torch.Tensor
    seen: list[str]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Wrapper:
        self = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device
        )
        self.held = held
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        unwrapped = tree_map_only(Wrapper, lambda wrapper: wrapper.held, args)
        return tree_map_only(torch.Tensor, cls, func(*unwrapped, **(kwargs or {})))


@EACH_KIND
def test_wrapper_subclasses_see_the_op_and_its_gradient(device: torch.device, sample: Sample) -> None:
    Wrapper.seen = []
    x = torch.randn(3, 5, dtype=torch.float64, device=device)
    wrapped, plain = Wrapper(x).requires_grad_(), x.clone().requires_grad_()
    y, expected = sample.ours(wrapped), sample.theirs(plain)
    assert type(y) is Wrapper
    grad = expected.detach().cos()
    (dx,) = torch.autograd.grad(y, wrapped, Wrapper(grad))
    assert {f"tridal.{sample.op.name}.default", f"tridal.{sample.op.name}_backward.default"} <= set(Wrapper.seen)
    assert_close(y.held, expected.detach())
    assert_close(dx.held, torch.autograd.grad(expected, plain, grad)[0])


def test_wrapper_subclasses_compile(device: torch.device) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    torch.compiler.reset()
    sample, x = OPS["cross_entropy"], torch.randn(3, 5, device=device)
    two = TwoTensor(x, x * 2).requires_grad_()
    y = torch.compile(sample.ours, fullgraph=True, backend="aot_eager")(two)
    assert_close(y.b, sample.theirs(x * 2))
    y.sum().backward()


@pytest.mark.parametrize("op", [sample.op for sample in OPS.values()], ids=OPS)
def test_a_compiled_call_finds_the_properties_of_the_declaration_computed(op: Any) -> None:
    """torch.compile cannot trace the lock that computes them in Python 3.11."""
    for declaration in (op, op.signature, op.gradient_signature):
        members = vars(type(declaration)).items()
        names = {name for name, value in members if isinstance(value, functools.cached_property)}
        assert names
        assert names <= vars(declaration).keys()
