"""The keys of calls: a known call computes only what is like it, and new numbers of rows of a bucket plan nothing."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import tridal
from call_helpers import frames_to_launch
from call_traits import TRAITS, Trait, check_call, tensors_of
from checked_memory import checked_memory
from conformance_helpers import INTERPRETER, registered
from feature_axes import Subclass
from op_samples import OPS, SAMPLES
from tridal.devices.types import KernelConfig, LaunchPlan, Problem
from tridal.pytorch.path.call import CALLS
from tridal.runtime.specialization import KernelCall

Tensor = torch.Tensor
PLAIN = TRAITS["plain"]


@pytest.fixture(autouse=True)
def interpreted(no_calls: None) -> Iterator[None]:
    """The interpreter serves CPU tensors, and no call is known."""
    pytest.importorskip("triton")
    if reason := tridal.registry.get("interpreter").unavailable():
        pytest.skip(reason)
    torch.manual_seed(0)
    with tridal.use(device="interpreter"), checked_memory():
        yield


# -- rows


@pytest.mark.parametrize("name", [name for name, sample in OPS.items() if sample.op.prepares])
def test_rows_on_both_sides_of_a_bucket(name: str) -> None:
    """Kernels that compute 16 rows of odd length as one depend on the number of rows, too."""
    for rows in (33, 34, 48, 47, 64, 65, 33):
        trait = Trait(rows, grad=lambda index: index == 0)
        check_call(OPS[name], trait, tensors_of(OPS[name], trait, 15))


@pytest.mark.parametrize("name", ["softmax", "cross_entropy"])
def test_rows_on_both_sides_of_a_large_bucket(name: str) -> None:
    for rows in (2048, 2049, 2047):
        trait = Trait(rows)
        check_call(OPS[name], trait, tensors_of(OPS[name], trait, 5))


ALONG_THE_LAST_DIM = (
    "softmax of dim -1", "layer_norm with residual", "swiglu", "cross_entropy", "cross_entropy of probabilities",
    "log_probs", "logsumexp of dim -1", "skip_norm of dim -1",
)  # fmt: skip


@pytest.mark.parametrize("name", ALONG_THE_LAST_DIM)
def test_new_numbers_of_rows_in_a_known_bucket_plan_nothing(name: str, planned: list[KernelCall]) -> None:
    def call(rows: int) -> None:
        check_call(SAMPLES[name], PLAIN, tensors_of(SAMPLES[name], Trait(rows), 8))

    call(33)
    call(66)
    before = len(planned), len(CALLS)
    for rows in (34, 65, 67, 68, 34, 66):
        call(rows)
    assert (len(planned), len(CALLS)) == before


class Loops:
    """The interpreter with a loop for one row. Such a launch serves one number of columns."""

    name = "loops"

    def __getattr__(self, member: str) -> Any:
        return getattr(INTERPRETER, member)

    def plan(self, problem: Problem, *arguments: Any) -> LaunchPlan:
        loop = LaunchPlan(KernelConfig("column_loop", rows=1, cols=16), 1, "one row")
        return loop if problem.rows == 1 else INTERPRETER.plan(problem, *arguments)


def test_losses_are_added_by_a_launch_for_their_number(planned: list[KernelCall]) -> None:
    with registered(Loops()), tridal.use(device="loops"):
        for rows in (33, 34, 33, 65, 68, 66):
            x, target = torch.randn(rows, 7), torch.arange(rows) % 7
            assert_close(tridal.cross_entropy(x, target), functional.cross_entropy(x, target))
    added = [call.layout.cols for call in planned if call.layout.rows == 1]
    assert [*dict.fromkeys(added)] == [33, 34, 65, 68, 66]


# -- tensors


def test_a_tensor_or_none() -> None:
    x, weight, bias, residual = torch.randn(4, 6, 8).unbind()
    rows = (weight[0], None, bias[0], None)
    for given, shift, added in zip((*rows, *rows), (*rows[1:], *rows), (residual, None) * 4, strict=False):
        total = x if added is None else x + added
        found = tridal.layer_norm(x, (8,), given, shift, residual=added)
        assert_close(found if added is None else found[0], functional.layer_norm(total, (8,), given, shift))


def test_tensors_of_other_classes_after_a_known_call() -> None:
    x, up = torch.randn(2, 3, 4)
    for _ in range(2):
        for first, second in ((x, up), (x, up.as_subclass(Subclass)), (x.as_subclass(Subclass), up)):
            found = tridal.swiglu(first, second)
            assert type(found) is type(functional.silu(first) * second)
            assert_close(found.as_subclass(Tensor), functional.silu(x) * up)


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_autocast_decides_the_dtype_of_a_loss(order: tuple[bool, bool]) -> None:
    x, target = torch.randn(6, 8).bfloat16(), torch.arange(6)
    for enabled in (*order, *order):
        with torch.autocast("cpu", enabled=enabled):
            assert tridal.cross_entropy(x, target).dtype is (torch.float32 if enabled else torch.bfloat16)


def test_meta_and_nested_tensors_after_a_known_call() -> None:
    x = torch.randn(3, 4)
    for _ in range(2):
        assert_close(tridal.softmax(x), torch.softmax(x, -1))
        assert tridal.softmax(x.to("meta")).is_meta
        nested = torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)
        for found, part in zip(tridal.softmax(nested).unbind(), (x, x[:2]), strict=True):
            assert_close(found, torch.softmax(part, -1))


@pytest.mark.parametrize(
    ("function", "shapes", "wrong"),
    [
        (tridal.swiglu, ((6, 8), (6, 8)), (5, 8)),
        (lambda x, weight: tridal.rms_norm(x, (8,), weight), ((6, 8), (8,)), (7,)),
        (lambda x, target: tridal.cross_entropy(x, target.long()), ((6, 8), (6,)), (5,)),
        (lambda x, target: tridal.log_probs(x, target.long()), ((6, 8), (6,)), (3,)),
        (lambda x, target: tridal.cross_entropy(x, target), ((6, 8), (6, 8)), (6, 7)),
    ],
)
def test_a_tensor_of_a_wrong_shape_is_refused_after_a_known_call(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], wrong: tuple[int, ...]
) -> None:
    x, other = map(torch.rand, shapes)
    for _ in range(2):
        function(x, other)
        with pytest.raises(ValueError, match="shape"):
            function(x, torch.rand(wrong))


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_a_tensor_that_requires_a_gradient_after_one_that_does_not(order: tuple[bool, bool]) -> None:
    for grad in (*order, *order):
        assert tridal.softmax(torch.randn(6, 8, requires_grad=grad)).requires_grad == grad


@contextmanager
def gradients_in_inference() -> Iterator[None]:
    with torch.inference_mode(), torch.enable_grad():
        yield


@pytest.mark.parametrize("order", itertools.permutations((nullcontext, torch.no_grad, gradients_in_inference)))
def test_modes_of_gradients(order: tuple[Any, ...]) -> None:
    x, target = torch.randn(6, 8, requires_grad=True), torch.arange(6)
    for context in (*order, *order):
        for function in (tridal.softmax, lambda x: tridal.cross_entropy(x, target), lambda x: tridal.swiglu(x, x)):
            with context():
                result = function(x)
            assert result.requires_grad == (context is nullcontext)
            assert result.is_inference() == (context is gradients_in_inference)


@pytest.mark.parametrize("base", [TorchFunctionMode, TorchDispatchMode])
def test_modes_see_known_calls(base: type) -> None:
    class Seen(base):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

        __torch_dispatch__ = __torch_function__

    seen: list[Any] = []
    x = torch.randn(3, 4)
    for count in (1, 2):
        assert_close(tridal.softmax(x), torch.softmax(x, -1))
        with Seen():
            tridal.softmax(x)
        names = [str(function) for function in seen]
        assert sum("softmax" in name for name in names) >= count, names


def test_transforms_and_batches_of_gradients_between_known_calls() -> None:
    x, basis = torch.randn(3, 4, requires_grad=True), torch.eye(12).view(12, 3, 4)

    def compute(softmax: Callable[..., Tensor]) -> list[Any]:
        y = softmax(x, -1)
        alone = torch.autograd.grad(y, x, basis[5], retain_graph=True)
        batched = torch.autograd.grad(y, x, basis, is_grads_batched=True)
        return [alone, batched, torch.vmap(lambda row: softmax(row, -1))(x), *torch.func.jvp(
            lambda z: softmax(z, -1), (x,), (x.cos(),)
        )]  # fmt: skip

    for _ in range(2):
        assert_close(compute(tridal.softmax), compute(torch.softmax))


def test_a_thread_has_its_own_settings_and_shares_calls(planned: list[KernelCall]) -> None:
    x = torch.randn(3, 4)
    tridal.softmax(x)
    for context, backend in ((contextvars.Context(), "torch"), (contextvars.copy_context(), "interpreter")):
        with tridal.record_calls() as records:
            inside = contextvars.copy_context() if backend == "interpreter" else context
            thread = threading.Thread(target=lambda inside=inside: inside.run(tridal.softmax, x))
            thread.start()
            thread.join()
        assert [record.backend for record in records] in ([backend], [])
    assert len(planned) == 1


# -- frames


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "cross_entropy", "swiglu"])
def test_a_known_call_has_few_frames_before_the_launch(name: str, grad: bool) -> None:
    x, other = (torch.randn(6, 16, requires_grad=grad) for _ in range(2))
    target = torch.arange(6)
    function = {
        "softmax": lambda: tridal.softmax(x, scale=0.5),
        "rms_norm": lambda: tridal.rms_norm(x, (16,), other[0], residual=other),
        "cross_entropy": lambda: tridal.cross_entropy(x, target),
        "swiglu": lambda: tridal.swiglu(x, other),
    }[name]
    function()
    nested, started = frames_to_launch(function)
    assert nested <= 4
    assert started <= 7
