"""PyTorch's own cases: every sample that its test database has for the softmax family, forward and gradient.

Each op is called as PyTorch's tests call it, with torch's softmax overridden, and is compared with torch's own; softmax
and log_softmax are called as tridal's functions besides, also where torch computes them. Complex dtypes are left out:
they are refused, which is checked.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal

pytest.importorskip("expecttest")
database = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TOLERANCE = {  # of results that two correct kernels give: an ulp or two of what is stored, more after a sum
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
FUNCTIONS = {"softmax": tridal.softmax, "log_softmax": tridal.log_softmax}
OPS = [info for info in database if re.search(r"soft(max|min)(_backward_data)?(\.default)?$", info.name)]


def label(info: Any) -> str:
    return info.name + ("_with_dtype" if info.variant_test_name else "")


def gradients(y: torch.Tensor, sample: Any) -> tuple[torch.Tensor, ...]:
    tensors = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not (y.requires_grad and tensors):
        return ()
    torch.manual_seed(0)
    return torch.autograd.grad(y, tensors, torch.randn(y.shape, device=y.device).to(y.dtype), retain_graph=True)


def agree(ours: Any, theirs: Any, dtype: torch.dtype) -> None:
    rtol, atol = TOLERANCE[dtype]
    assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)


def coarser(*dtypes: torch.dtype) -> torch.dtype:
    return min((dtype for dtype in dtypes if dtype in TOLERANCE), key=FLOATING.index)


def run(call: Any, info: Any, device: torch.device) -> int:
    count = 0
    for dtype in sorted(info.supported_dtypes(device.type), key=str):
        if dtype.is_complex:
            continue
        for sample in info.sample_inputs(device.type, dtype, requires_grad=dtype.is_floating_point):
            try:
                y, expected = call(sample)
            except RuntimeError:
                # Some of torch's versions and devices refuse a gradient in half precision for a float32 input.
                with pytest.raises(RuntimeError, match="expected scalar type"):
                    info(sample.input, *sample.args, **sample.kwargs)
                continue
            tolerance = coarser(dtype, expected.dtype)
            agree(y, expected, tolerance)
            agree(gradients(y, sample), gradients(expected, sample), tolerance)
            count += 1
    return count


def test_the_database_has_them_all() -> None:
    assert sorted({info.name for info in OPS}) == [
        "_softmax_backward_data", "log_softmax", "masked.log_softmax", "masked.softmax", "masked.softmin",
        "nn.functional.softmin", "softmax", "torch.ops.aten._safe_softmax.default",
    ]  # fmt: skip


@pytest.mark.parametrize("info", OPS, ids=label)
def test_under_override(device: torch.device, info: Any) -> None:
    def call(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
        expected = info(sample.input, *sample.args, **sample.kwargs)
        with tridal.override_torch():
            return info(sample.input, *sample.args, **sample.kwargs), expected

    count = run(call, info, device)
    print(f"\n{label(info)}: {count} samples under override_torch on {device}")
    assert count >= 12


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("info", [info for info in OPS if info.name in FUNCTIONS], ids=label)
def test_tridals_functions(device: torch.device, info: Any, served: bool) -> None:
    where = device if served else torch.device("cpu")

    def call(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
        function = FUNCTIONS[info.name]
        return function(sample.input, *sample.args, **sample.kwargs), info(sample.input, *sample.args, **sample.kwargs)

    with tridal.use(device=None if served else "auto"):
        count = run(call, info, where)
    print(f"\n{label(info)}: {count} samples by tridal.{info.name} on {where}, {'a backend' if served else 'torch'}")
    assert count >= 20


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_refused(device: torch.device, function: Any, dtype: torch.dtype) -> None:
    with pytest.raises(tridal.errors.DTypeError, match="complex"):
        function(torch.randn(3, 5, dtype=dtype, device=device), -1)
    with pytest.raises(tridal.errors.DTypeError, match="complex"):
        function(torch.randn(3, 5, device=device), -1, dtype)


@pytest.mark.parametrize("info", [info for info in OPS if info.name in FUNCTIONS], ids=label)
def test_bad_inputs_of_the_database(device: torch.device, info: Any) -> None:
    for bad in info.error_inputs(device.type) if info.error_inputs_func else ():
        sample = bad.sample_input
        with pytest.raises(bad.error_type):
            FUNCTIONS[info.name](sample.input, *sample.args, **sample.kwargs)
