"""The argument `dtype` of ops: which tensors it casts, and the dtypes of sums, of results and of gradients."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER
from op_samples import OPS, THIRD_PARTY, Sample, gradients, logsumexp, mean_energy
from tridal import ops

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
Tensor = torch.Tensor
F16, F32, F64 = torch.float16, torch.float32, torch.float64


@triton.jit
def centered(x, total, count, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return x - tl.expand_dims(total / count, AXIS)


TOTAL = ops.Statistic("total", "sum", term="x")
CENTER = ops.Op(
    "center", (ops.per_element("input"),),
    tuple(ops.RowKernel(n, __name__, ("x",), (TOTAL,), ("centered",)) for n in ("center", "center_backward")),
    lambda x, reduce: x - reduce.mean(x), gradient=lambda dy, reduce: dy - reduce.mean(dy), saves=(),
)  # fmt: skip
center = tridal.row_function(CENTER)


def cast_tensors(sample: Sample, given: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    roles = {"input": "element", **sample.roles}
    return {name: tensor.to(dtype) if roles[name] == "element" else tensor for name, tensor in given.items()}


@pytest.mark.parametrize(
    ("given", "dtype", "device"),
    [
        (F16, F32, "interpreter"),
        (F32, F16, "interpreter"),
        (F32, F64, "auto"),
        (F64, F32, "interpreter"),
        (F64, F16, "auto"),
    ],
    ids=str,
)
@pytest.mark.parametrize("sample", THIRD_PARTY.values(), ids=THIRD_PARTY)
def test_each_tensor_with_a_number_per_element_is_cast_before_the_op(
    sample: Sample, given: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    tensors = sample.leaves(5, 37, dtype=given)
    if "residual" in tensors:  # the sum depends on the last bits of both tensors
        nearly = -tensors["input"].detach() * (1 + torch.finfo(dtype).eps / 4)
        tensors["residual"] = nearly.requires_grad_()
    bound = {F16: 4e-3, F32: 1e-5, F64: 1e-12}[min((given, dtype), key=lambda dtype: dtype.itemsize)]
    bounds = {"rtol": bound, "atol": bound}
    expected = sample.expected(**cast_tensors(sample, tensors, dtype))
    wanted = gradients(lambda **t: sample.expected(**cast_tensors(sample, t, dtype)), tensors)
    with tridal.use(device=device, fallback="torch"):
        assert_close(sample.function(**tensors, dtype=dtype), expected, **bounds)
        if "residual" not in tensors:  # the gradient of this sum is too large to compare
            assert_close(gradients(lambda **t: sample.function(**t, dtype=dtype), tensors), wanted, **bounds)


def test_dtypes_are_promoted_and_gradients_have_the_dtypes_of_their_tensors() -> None:
    sample = OPS["skip_norm"]
    dtypes = F16, F32, F32, torch.bfloat16
    tensors = {
        n: t.detach().to(d).requires_grad_() for (n, t), d in zip(sample.leaves(4, 8).items(), dtypes, strict=True)
    }
    with tridal.use(device="interpreter", fallback="error"):
        results = sample.function(**tensors)
        found = gradients(lambda **_: results, tensors)
    assert_close(results, sample.expected(**{name: tensor.float() for name, tensor in tensors.items()}))
    assert tuple(gradient.dtype for gradient in found.values()) == dtypes


@pytest.mark.parametrize("device", ["interpreter", "auto"])
def test_sums_of_float64_are_exact_in_float64(device: str) -> None:
    x = torch.linspace(-2, 2, 60).view(5, 12)
    with tridal.use(device=device, fallback="torch"):
        assert_close(logsumexp(x, 0, F64), x.double().logsumexp(0), rtol=1e-14, atol=0)
        assert_close(mean_energy(x, 0, F64), x.double().square().sum(0).mean(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("higher_order", [False, True])
def test_a_gradient_without_saved_tensors_is_not_rounded_to_the_dtype_of_the_input(higher_order: bool) -> None:
    x = torch.zeros(2, 64, dtype=F16, requires_grad=True)
    dy = 1000 + torch.linspace(-0.1, 0.1, 64).expand(2, 64)  # all equal in float16
    with tridal.use(device="interpreter", fallback="error"):
        grad = dy.clone().requires_grad_(higher_order)
        (found,) = torch.autograd.grad(center(x, dtype=F32), x, grad, create_graph=higher_order)
    assert_close(found, (dy - dy.mean(-1, keepdim=True)).half())
