"""Ops of several tensors, and of numbers per row, that a third party declares. tridal has no code for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.func import grad, hessian, jvp, vmap
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER
from third_party_tensors import CASES, PACKAGE, Case, gradients, loss
from tridal import testing
from tridal.errors import DimensionError, DTypeError, ShapeError
from tridal.testing.implementation import implementation

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
SKIP = CASES["skip_norm with residual"]


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """Kernels compute every call; torch computes none."""
    torch.manual_seed(0)
    with tridal.use(device="interpreter", fallback="error"):
        yield


def lines_of_code(*names: str) -> int:
    """The lines of files of the package, without blank lines, comments and docstrings of one line."""
    lines = [line.strip() for name in names for line in (PACKAGE / "tridal_skipnorm" / name).read_text().splitlines()]
    return len([line for line in lines if line and not line.startswith(("#", '"""'))])


def test_the_package_is_small() -> None:
    assert 30 < lines_of_code("skip_norm.py", "skip_norm_kernels.py") <= 100
    assert 30 < lines_of_code("logsumexp.py", "logsumexp_kernels.py") <= 60


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((5, 37), -1), ((37, 5), 0), ((3, 40, 7), 1), ((2, 3000), 1), ((9,), 0)])
def test_results_and_gradients_equal_torch(case: Case, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    tensors = case.tensors(shape, dim, dtype)
    bound = 4 * torch.finfo(dtype).eps if dtype.itemsize == 2 else None
    with tridal.record_calls() as calls:
        assert_close(case.function(*tensors, dim=dim), case.expected(*tensors, dim=dim), atol=bound, rtol=bound)
        found, wanted = (gradients(f, tensors, dim=dim) for f in (case.function, case.expected))
    assert_close(found, wanted, atol=None if bound is None else 8 * bound, rtol=None if bound is None else 8 * bound)
    assert {call.reason for call in calls} == {None}


@EACH
def test_any_strides(case: Case) -> None:
    tensors = case.tensors((6, 10), gradient=False)
    moved = [torch.stack([t, t], -1)[..., 1] for t in tensors]
    moved[0] = moved[0].T.contiguous().T
    assert_close(case.function(*moved), case.expected(*tensors))
    whole = case.tensors((3, 41), gradient=False, dtype=torch.float32)
    shifted = [torch.cat([t.flatten(), t.new_zeros(1)])[1:].view(t.shape) for t in whole]
    assert_close(case.function(*shifted), case.expected(*shifted))


@EACH
@pytest.mark.parametrize("plan", testing.overrides(INTERPRETER))
def test_every_schedule(case: Case, plan: str) -> None:
    for shape, dim in (((5, 150), -1), ((70, 3), 0)):
        tensors = case.tensors(shape, dim, torch.float32)
        with implementation(INTERPRETER, plan):
            found = case.function(*tensors, dim=dim)
            assert_close(found, case.expected(*tensors, dim=dim), rtol=2e-5, atol=2e-5)
            found = gradients(case.function, tensors, dim=dim)
        assert_close(found, gradients(case.expected, tensors, dim=dim), rtol=2e-4, atol=2e-4)


@EACH
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_one_value_that_is_not_finite(case: Case, value: float) -> None:
    tensors = case.tensors((3, 5), gradient=False)
    tensors[0][1, 2] = value
    tensors[0][2] = -torch.inf
    assert_close(case.function(*tensors), case.expected(*tensors), equal_nan=True)


@EACH
def test_derivatives_of_first_and_second_order_and_forward_mode(case: Case) -> None:
    tensors = case.tensors((3, 5))
    assert torch.autograd.gradcheck(
        case.function, tensors, check_forward_ad=True, check_batched_grad=True, fast_mode=True, atol=1e-5
    )
    assert torch.autograd.gradgradcheck(case.function, tensors, fast_mode=True)


@EACH
def test_each_set_of_tensors_that_require_a_gradient(case: Case) -> None:
    for bits in range(1, 2 ** len(case.tensors((2, 3)))):
        tensors = case.tensors((4, 6), gradient=False)
        needed = [tensor.requires_grad_() for i, tensor in enumerate(tensors) if bits >> i & 1]
        found, wanted = (torch.autograd.grad(loss(f(*tensors)), needed) for f in (case.function, case.expected))
        assert_close(found, wanted)


def test_each_result_may_have_a_gradient_alone() -> None:
    for index in range(2):
        tensors = SKIP.tensors((4, 6))
        found, wanted = (
            torch.autograd.grad(loss(f(*tensors)[index]), tensors, allow_unused=True)
            for f in (SKIP.function, SKIP.expected)
        )
        assert_close([found[0], found[3]], [wanted[0], wanted[3]])
        for one, other in zip(found[1:3], wanted[1:3], strict=True):
            assert_close(torch.zeros(6, dtype=torch.float64) if one is None else one, one if other is None else other)


@EACH
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_equal_torch(case: Case, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *tensors: case.function(*tensors, dim=1), fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for rows in (4, 5):
        tensors = case.tensors((rows, 6, 3), 1)
        found, wanted = compiled(*tensors), case.expected(*tensors, dim=1)
        assert_close(found, wanted)
        assert_close(torch.autograd.grad(loss(found), tensors), torch.autograd.grad(loss(wanted), tensors))


@EACH
def test_one_compilation_serves_all_row_counts(case: Case) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(case.function, fullgraph=True, dynamic=True, backend=counter)
    for rows in (3, 4, 7):
        tensors = case.tensors((rows, 6), gradient=False)
        assert_close(compiled(*tensors), case.expected(*tensors))
    assert counter.frame_count == 1


@EACH
@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_contain_the_op(case: Case, strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return case.function(*tensors)

    given, other = (tuple(case.tensors((rows, 6), gradient=False)) for rows in (3, 7))
    rows = torch.export.Dim("rows", min=2, max=100)
    shapes = {"tensors": tuple({0: rows} if tensor.dim() == 2 else None for tensor in given)}
    program = torch.export.export(Model(), given, dynamic_shapes=shapes, strict=strict)
    name = getattr(torch.ops.tridal, case.function.__name__).default
    assert [node.target for node in program.graph.nodes if node.target is name] == [name]
    assert_close(program.module()(*other), case.expected(*other))


@EACH
def test_vmap_runs_kernels_and_a_batched_weight_equals_torch(case: Case) -> None:
    tensors = case.tensors((4, 6), gradient=False)
    for batched in range(len(tensors)):
        given = [torch.stack([t, t + 1, t * 2], 1) if i == batched else t for i, t in enumerate(tensors)]
        dims = tuple(1 if i == batched else None for i in range(len(tensors)))
        with tridal.record_calls() as calls:
            found = vmap(case.function, dims)(*given)
        assert_close(found, vmap(case.expected, dims)(*given))
        of_column = 0 < batched <= case.columns
        assert of_column or [call.backend for call in calls] == ["interpreter"], calls


@EACH
def test_transforms_of_torch_func(case: Case) -> None:
    tensors = case.tensors((3, 4, 5), gradient=False)

    def total(function: Any) -> Any:
        return lambda x: loss(function(x, *(t if t.dim() == 1 else t[0] for t in tensors[1:])))

    x = tensors[0]
    assert_close(vmap(grad(total(case.function)))(x), vmap(grad(total(case.expected)))(x))
    assert_close(hessian(total(case.function))(x[0]), hessian(total(case.expected))(x[0]))
    pushed = (jvp(total(f), (x[0],), (x[1],)) for f in (case.function, case.expected))
    assert_close(*pushed)


@EACH
def test_registered_ops_pass_torchs_checks(case: Case) -> None:
    tensors = case.tensors((3, 5), dtype=torch.float32)
    if case.columns:
        x, weight, skip, *residual = tensors
        given: tuple[Any, ...] = (x, *(residual or [None]), weight, skip, -1, x.dtype, 1e-6)
    else:
        given = (*tensors, -1, torch.float32)
    torch.library.opcheck(getattr(torch.ops.tridal, case.function.__name__).default, given)


@EACH
def test_autocast_does_not_change_the_op(case: Case) -> None:
    tensors = case.tensors((3, 8), dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.function(*tensors)
    assert_close(found, case.function(*tensors))


def test_the_dtype_argument_casts_tensors_per_element() -> None:
    tensors = SKIP.tensors((3, 8), dtype=torch.bfloat16)
    found = SKIP.function(*tensors, dtype=torch.float32)
    assert_close(found, SKIP.expected(*(t.float() for t in tensors)))
    assert [t.dtype for t in gradients(lambda *t: SKIP.function(*t, dtype=torch.float32), tensors)] == [
        torch.bfloat16
    ] * 4


def test_mixed_dtypes_are_promoted_and_gradients_have_the_dtypes_of_their_tensors() -> None:
    x, weight, skip, residual = SKIP.tensors((4, 8), dtype=torch.float32)
    tensors = (x.detach().half().requires_grad_(), weight, skip.detach().bfloat16().requires_grad_(), residual)
    y, total = SKIP.function(*tensors)
    assert y.dtype is total.dtype is torch.float32
    assert_close((y, total), SKIP.expected(*(t.float() for t in tensors)))
    assert [t.dtype for t in gradients(SKIP.function, tensors)] == [t.dtype for t in tensors]


@EACH
def test_threads_get_the_results_of_one_thread(case: Case) -> None:
    batches = [case.tensors((rows, 12), gradient=rows % 2 == 0) for rows in range(1, 9)]
    wanted = [case.expected(*tensors) for tensors in batches]

    def compute(index: int) -> Any:
        with tridal.use(device="interpreter", fallback="error"):
            return case.function(*batches[index % len(batches)])

    with ThreadPoolExecutor(4) as pool:
        for index, found in enumerate(pool.map(compute, range(32))):
            assert_close(found, wanted[index % len(batches)])


@EACH
def test_torch_computes_where_no_backend_does(case: Case) -> None:
    tensors = case.tensors((3, 8))
    with tridal.use(device="auto", fallback="torch"):
        found, found_gradients = case.function(*tensors), gradients(case.function, tensors)
    assert_close(found, case.expected(*tensors))
    assert_close(found_gradients, gradients(case.expected, tensors))


@EACH
def test_empty_tensors(case: Case) -> None:
    for shape in ((0, 5), (3, 0, 2)):
        tensors = case.tensors(shape, 1)
        results = case.function(*tensors, dim=1)
        results = results if isinstance(results, tuple) else (results,)
        assert {result.shape for result in results} <= {torch.Size(shape), torch.Size((shape[0], *shape[2:]))}


def test_a_tensor_with_torch_function_gets_the_arguments_in_order() -> None:
    class Recorded(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function.__name__, args, kwargs

    x, weight, skip, residual = (tensor.detach().as_subclass(Recorded) for tensor in SKIP.tensors((2, 3)))
    name, given, options = SKIP.function(x, weight, skip, residual, 1, eps=0.5)
    assert (name, options) == ("skip_norm", {"stream": None, "eps": 0.5})
    assert all(found is wanted for found, wanted in zip(given, (x, weight, skip, residual, 1, None), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": torch.ones(4)}, ShapeError, r"skip_norm: weight has a number per column: .* \(5,\), got \(4,\)"),
        ({"residual": torch.ones(5)}, ShapeError, r"skip_norm: residual has a number per element: .* \(3, 5\)"),
        ({"skip": None}, TypeError, "must be a torch.Tensor, got NoneType"),
        ({"skip": torch.ones(5, dtype=torch.int32)}, DTypeError, "skip_norm of torch.int32 is not defined"),
        ({"dim": 2}, DimensionError, r"dim 2 is out of range for a tensor of shape \(3, 5\)"),
        ({"eps": "1"}, TypeError, "skip_norm: eps must be a number, got '1'"),
        ({"eps": torch.ones(())}, TypeError, "skip_norm: eps must be a number, got tensor"),
    ],
    ids=["weight", "residual", "absent", "dtype", "dim", "number", "tensor as number"],
)
def test_a_wrong_argument_is_an_error_that_names_it(change: dict[str, Any], error: type, message: str) -> None:
    given = {"weight": torch.ones(5), "skip": torch.ones(5), **change}
    with pytest.raises(error, match=message):
        SKIP.function(torch.ones(3, 5), **given)
