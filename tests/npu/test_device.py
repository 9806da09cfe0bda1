"""Host code from `tridal.softmax` on an npu tensor, through triton-ascend's compiler and launcher, to the result.

Only the device and its driver are emulated. All other code is tridal's and triton-ascend's.
"""

from __future__ import annotations

import pytest
import torch

import tridal
from offboard import device, driver
from tridal.devices import registry, settings
from tridal.errors import StreamError
from tridal.runtime.specialization import NO_SCALE_MASK
from tridal.testing.changed_backend import with_members
from tridal_npu import backend


@pytest.fixture(autouse=True)
def _no_launches(default_settings: None) -> None:
    """Clears the record of launches before each test."""
    driver.launches.clear()


def exact(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.softmax(input.cpu().double(), dim)


def close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(result.detach().cpu().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "programs"), [((1823, 781), 32), ((100_000, 12), 32), ((3, 5000), 3)])
def test_an_npu_tensor_is_computed_by_the_npu_backend(shape, programs):
    x = torch.randn(shape, device="npu")
    y = tridal.softmax(x)
    assert y.device == x.device
    assert close(y, exact(x))
    assert [launch.programs for launch in driver.launches] == [programs]


def test_the_environment_variable_selects_the_device(monkeypatch):
    monkeypatch.setenv("TRIDAL_DEVICE", "npu:1")
    settings.reload()
    assert tridal.device() == torch.device("npu", 1)


@pytest.mark.parametrize(("num_programs", "programs"), [(7, 7), ("cores", device.VECTOR_CORES), (65_535, 4096)])
def test_num_programs_sets_the_number_of_programs_up_to_the_number_of_tiles(num_programs, programs):
    x = torch.randn(4096, 3000, device="npu")
    with tridal.use(backends={"npu": {"num_programs": num_programs}}):
        y = tridal.softmax(x)
    assert close(y[:5], exact(x[:5]))
    assert [launch.programs for launch in driver.launches] == [programs]


def test_the_kernel_runs_on_the_current_stream_or_on_that_of_the_argument():
    stream, before = torch.npu.Stream(), torch.npu.current_stream()
    x = torch.randn(4, 4, device="npu")
    with torch.npu.stream(stream):
        tridal.softmax(x)
    tridal.softmax(x)
    tridal.softmax(x, stream=stream)
    tridal.softmax(x, stream=0xBEEF)
    handles = [launch.stream for launch in driver.launches]
    assert handles == [stream.npu_stream, before.npu_stream, stream.npu_stream, 0xBEEF]
    assert torch.npu.current_stream() is before


def test_a_stream_handle_is_rejected_if_torch_npu_has_no_external_stream(monkeypatch):
    monkeypatch.delattr(torch.npu, "ExternalStream")
    with pytest.raises(StreamError, match="npu devices take no raw stream handle"):
        tridal.softmax(torch.randn(4, 4, device="npu"), stream=0xBEEF)


def test_a_stream_of_another_device_is_rejected():
    stream = torch.npu.Stream(device=1)
    with pytest.raises(StreamError, match="npu:1") as caught:
        tridal.softmax(torch.randn(4, 4, device="npu:0"), stream=stream)
    assert "npu:0" in str(caught.value)
    assert not driver.launches


def test_the_kernel_runs_on_the_device_of_the_tensor_if_another_device_is_current():
    for index in (1, 0, 1):
        x = torch.randn(33, 65, device=f"npu:{index}")
        y = tridal.softmax(x)
        assert y.device == x.device
        assert close(y, exact(x))
        assert torch.npu.current_device() == 0
    assert [launch.device for launch in driver.launches] == [1, 0, 1]
    assert [device.stream_devices[launch.stream] for launch in driver.launches] == [1, 0, 1]


def test_a_masked_softmax_launches_the_kernel_without_a_mask(planned):
    scores, mask = torch.randn(2, 3, 8, 200, device="npu"), torch.rand(2, 1, 8, 200, device="npu") > 0.3
    y = tridal.softmax(scores, mask=mask)
    assert close(y, exact(scores.cpu().masked_fill(~mask.cpu(), -torch.inf)))
    assert [launched.kernel for launched in driver.launches] == ["whole_row"]
    assert [call.scale_mask for call in planned] == [NO_SCALE_MASK]


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3, 8, 200), torch.float32), ((1, 3, 4, 40_000), torch.bool)])
def test_kernels_with_scale_and_mask_compile_and_are_correct(shape, dtype):
    scores, keep = torch.randn(shape, device="npu", requires_grad=True), torch.rand(shape[0], 1, *shape[2:]) > 0.3
    mask = keep if dtype is torch.bool else torch.randn(keep.shape).masked_fill(~keep, -torch.inf)
    # The NPU's backend with this feature, as if the unified buffer were large enough for it.
    registry.register(with_members(backend, name="npuscalemask", features=backend.features | {"scale_mask"}))
    try:
        with tridal.use(device="npuscalemask"):
            y = tridal.softmax(scores, scale=0.5, mask=mask.npu(), causal=True, masked_rows="zero")
            (dx,) = torch.autograd.grad(y, scores, torch.ones_like(y) * 3 - y.detach())
    finally:
        registry.unregister("npuscalemask")
    x = scores.detach().cpu().double() * 0.5
    x = x.masked_fill(~keep, -torch.inf) if dtype is torch.bool else x + mask
    x = x.masked_fill(torch.ones(x.shape[-2:]).tril() == 0, -torch.inf)
    expected = torch.where((x == -torch.inf).all(-1, keepdim=True), 0.0, exact(x))
    assert close(y, expected)
    saved = y.detach().cpu().double()
    grad = 3 - saved
    assert close(dx, 0.5 * saved * (grad - (grad * saved).sum(-1, keepdim=True)))
    kernel = "column_loop" if shape[-1] > 1_000 else "whole_row"
    assert [launch.kernel for launch in driver.launches] == [kernel, kernel]
