"""Ops of several tensors, and of numbers per row, that a third party declares. tridal has no code for them.

Tests of all ops use samples of them, too: see `op_samples.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER
from index_op import NLL
from op_samples import (
    L2_NORM,
    LOGSUMEXP,
    MEAN_ENERGY,
    OPS,
    SKIP_NORM,
    THIRD_PARTY,
    Sample,
    as_tuple,
    gradients,
    l2_norm,
    loss_of,
    skip_norm,
)
from tridal import testing
from tridal.errors import DimensionError, DTypeError, ShapeError

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
EACH = pytest.mark.parametrize("sample", THIRD_PARTY.values(), ids=THIRD_PARTY)
SKIP = OPS["skip_norm"]
"""Rows along dim 0, with a residual."""


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """Kernels compute every call; torch computes none."""
    torch.manual_seed(0)
    with tridal.use(device="interpreter", fallback="error"):
        yield


@pytest.mark.parametrize("op", [L2_NORM, SKIP_NORM, LOGSUMEXP, MEAN_ENERGY, NLL], ids=lambda op: op.name)
def test_quick_cases_of_every_schedule_pass(op: Any, add_op: Any) -> None:
    """They have many shapes, layouts, dtypes, values, numbers and absent tensors, and all directions."""
    add_op(op)
    cases = testing.quick_cases(INTERPRETER, [op.name])
    assert {case.plan for case in cases} == {"planned", *testing.overrides(INTERPRETER)}
    assert {case.direction for case in cases} == {"forward", "backward", "double"}
    results = [testing.run_case(case, INTERPRETER) for case in cases]
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_and_gradients_equal_torch_on_devices_with_and_without_a_backend(
    sample: Sample, dtype: torch.dtype
) -> None:
    bound = 4 * torch.finfo(dtype).eps if dtype.itemsize == 2 else None
    wide = None if bound is None else 8 * bound
    for shape in ((5, 37), (3, 40, 7), (9,)):
        tensors = sample.leaves(*shape, dtype=dtype)
        expected, expected_gradients = sample.expected(**tensors), gradients(sample.expected, tensors)
        for device in ("interpreter", "auto"):
            with tridal.use(device=device, fallback="torch"):
                assert_close(sample.function(**tensors), expected, rtol=bound, atol=bound)
                assert_close(gradients(sample.function, tensors), expected_gradients, rtol=wide, atol=wide)


def test_each_result_may_have_a_gradient_alone() -> None:
    for index in range(2):
        tensors = SKIP.leaves(4, 6)
        for needed in tensors.values():
            found, wanted = (
                torch.autograd.grad(loss_of(f(**tensors)[index]), needed, allow_unused=True)[0]
                for f in (SKIP.function, SKIP.expected)
            )
            assert_close(*(torch.zeros_like(needed) if gradient is None else gradient for gradient in (found, wanted)))


@EACH
def test_autocast_does_not_change_the_op(sample: Sample) -> None:
    tensors = sample.leaves(3, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sample.function(**tensors)
    assert_close(found, sample.function(**tensors))


def test_dtypes_are_promoted_or_cast_and_gradients_have_the_dtypes_of_their_tensors() -> None:
    made = SKIP.leaves(4, 8, dtype=torch.float32)
    for dtypes, options in (
        ((torch.float16, torch.float32, torch.float32, torch.bfloat16), {}),
        ((torch.bfloat16,) * 4, {"dtype": torch.float32}),
    ):
        tensors = {n: t.detach().to(dtype).requires_grad_() for (n, t), dtype in zip(made.items(), dtypes, strict=True)}
        results = SKIP.function(**tensors, **options)
        assert {result.dtype for result in results} == {torch.float32}
        assert_close(results, SKIP.expected(**{name: tensor.float() for name, tensor in tensors.items()}))
        found = gradients(lambda results=results, **_: results, tensors)
        assert tuple(gradient.dtype for gradient in found.values()) == dtypes


@EACH
def test_empty_tensors(sample: Sample) -> None:
    for shape in ((0, 5), (3, 0)):
        tensors = sample.leaves(*shape)
        for found, expected in zip(*(as_tuple(f(**tensors)) for f in (sample.function, sample.expected)), strict=True):
            assert found.shape == expected.shape


def test_a_tensor_with_torch_function_gets_the_arguments_in_order() -> None:
    class Recorded(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function.__name__, args, kwargs

    x, residual, weight, skip = (tensor.detach().as_subclass(Recorded) for tensor in SKIP.leaves(2, 3).values())
    name, given, options = skip_norm(x, weight, skip, residual, 1, eps=0.5)
    assert (name, options) == ("skip_norm", {"stream": None, "eps": 0.5})
    assert all(found is wanted for found, wanted in zip(given, (x, weight, skip, residual, 1, None), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": torch.ones(4)}, ShapeError, r"skip_norm: weight must have the shape \(5,\), got \(4,\)"),
        ({"residual": torch.ones(5)}, ShapeError, r"skip_norm: residual must have the shape \(3, 5\), got \(5,\)"),
        ({"skip": None}, TypeError, "must be a torch.Tensor, got NoneType"),
        ({"skip": torch.ones(5, dtype=torch.int32)}, DTypeError, "skip_norm: skip must have a floating-point dtype"),
        ({"dim": 2}, DimensionError, r"dim must be from -2 to 1 for input of shape \(3, 5\)"),
        ({"eps": "1"}, TypeError, "skip_norm: eps must be a number, got '1'"),
        ({"eps": torch.ones(())}, TypeError, "skip_norm: eps must be a number, got tensor"),
    ],
    ids=["weight", "residual", "absent", "dtype", "dim", "number", "tensor as number"],
)
def test_a_wrong_argument_is_an_error_that_names_it(change: dict[str, Any], error: type, message: str) -> None:
    given = {"weight": torch.ones(5), "skip": torch.ones(5), **change}
    with pytest.raises(error, match=message):
        skip_norm(torch.ones(3, 5), **given)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.ones(2), 3), {}, DimensionError, "l2_norm: dim must be from -1 to 0"),
        (
            (torch.ones(2, dtype=torch.int32),),
            {},
            DTypeError,
            "l2_norm: input must have a floating-point dtype, got torch.int32",
        ),
        ((torch.ones(2),), {"epsilon": 1.0}, TypeError, r"l2_norm\(\) got an unexpected keyword argument 'epsilon'"),
    ],
    ids=["dim", "dtype", "name"],
)
def test_wrong_arguments_of_an_op_of_one_tensor(arguments: Any, options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        l2_norm(*arguments, **options)
    assert_close(l2_norm(torch.arange(4), dtype=torch.float32), torch.nn.functional.normalize(torch.arange(4.0), dim=0))
    assert_close(l2_norm(1e-9 * torch.ones(3, 5), eps=1e-3), 1e-6 * torch.ones(3, 5))
