"""The samples of PyTorch's test database for the losses, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from test_opdb import FLOATING, TOLERANCE, database, gradients

FUNCTIONS = {
    "nn.functional.cross_entropy": tridal.cross_entropy,
    "nn.functional.linear_cross_entropy": tridal.linear_cross_entropy,
}
OPS = [info for info in database if info.name in FUNCTIONS]


def close(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    """Compares results. torch rounds logits, probabilities and their gradients to the dtype, before it adds them."""
    rtol, atol = TOLERANCE[dtype]
    largest = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
    assert_close(ours, theirs, rtol=rtol, atol=atol * max(1.0, largest), equal_nan=True)


def by_torch(info: Any, sample: Any) -> torch.Tensor:
    """The result of torch, without chunks."""
    without = {"options": None} if sample.kwargs.get("options") is not None else {}
    return info(sample.input, *sample.args, **(sample.kwargs | without))  # type: ignore[no-any-return]


def widened(value: Any) -> Any:
    """A floating-point tensor in float64; other values unchanged."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result - exact).abs().max())


@pytest.mark.parametrize("info", OPS, ids=lambda info: f"{info.name}-{info.variant_test_name}")
def test_samples_equal_torch(device: torch.device, info: Any, request: pytest.FixtureRequest) -> None:
    count = 0
    # There are about a thousand samples of the linear form. Each dtype gets a seventh of them, and another one.
    step = 1 if request.config.getoption("--matrix") or info.name.endswith("functional.cross_entropy") else 7
    for first, dtype in enumerate(sorted(set(info.supported_dtypes(device.type)) & set(FLOATING), key=str)):
        samples = list(info.sample_inputs(device.type, dtype, requires_grad=True))
        for sample in samples[first % step :: step]:
            options = {name: value for name, value in sample.kwargs.items() if name != "options"}
            chunks = sample.kwargs.get("options")
            if chunks is not None:
                options |= {"chunk_size": chunks.batch_chunk_size, "accum_dtype": chunks.acc_dtype}
            ours = FUNCTIONS[info.name](sample.input, *sample.args, **options)  # type: ignore[operator]
            expected = by_torch(info, sample)
            close(ours, expected, dtype)
            results = [gradients(ours, sample), gradients(expected, sample)]
            try:
                for found, wanted in zip(*results, strict=True):
                    close(found, wanted, dtype)
            except AssertionError:  # torch rounds probabilities to the dtype
                wide = sample.transform(widened)
                results.append(gradients(by_torch(info, wide), wide))
                for found, wanted, exact in zip(*results, strict=True):
                    assert largest_error(found, exact) <= largest_error(wanted, exact)
            count += 1
    print(f"\n{info.name} {info.variant_test_name}: {count} samples")
    assert count >= 40


@pytest.mark.parametrize("info", OPS, ids=lambda info: f"{info.name}-{info.variant_test_name}")
def test_error_samples_raise(device: torch.device, info: Any) -> None:
    for bad in info.error_inputs(device.type) if info.error_inputs_func else ():
        sample = bad.sample_input
        with pytest.raises(bad.error_type):
            FUNCTIONS[info.name](sample.input, *sample.args, **sample.kwargs)  # type: ignore[operator]
