"""The host side, from `tridal.softmax` on an npu tensor through triton-ascend's compiler and launcher to its result.

The device is emulated and the board is this machine's processor; all between them is the product and triton-ascend.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tridal
from offboard import board, device
from tridal.devices import registry, settings
from tridal.errors import DTypeError, NoBackendError, SettingsError, StreamError
from tridal.ops.scale_mask import Extras
from tridal.pytorch import device_context as places
from tridal.pytorch import prepared as execute
from tridal_npu import backend

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def _fresh(own_settings: None) -> None:
    """No settings and no launches but a test's own."""
    board.launches.clear()


def exact(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.softmax(input.cpu().double(), dim)


def close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(result.detach().cpu().double(), expected, rtol=1e-5, atol=1e-6)


def test_an_npu_tensor_goes_to_the_npu_backend():
    x = torch.randn(1823, 781, device="npu")
    y = tridal.softmax(x)
    assert y.device == x.device
    assert close(y, exact(x))
    assert [launch.programs for launch in board.launches] == [32]


def test_a_hundred_thousand_rows_take_32_programs():
    x = torch.randn(100_000, 12, device="npu")
    assert close(tridal.softmax(x), exact(x))
    assert [launch.programs for launch in board.launches] == [32]


def test_fewer_rows_than_programs():
    x = torch.randn(3, 5000, device="npu")
    assert close(tridal.softmax(x), exact(x))
    assert [launch.programs for launch in board.launches] == [3]


def test_the_environment_chooses_the_device(monkeypatch):
    monkeypatch.setenv("TRIDAL_DEVICE", "npu:1")
    settings.reload()
    assert tridal.device() == torch.device("npu", 1)


def test_the_device_is_chosen_without_being_asked_for():
    assert tridal.device().type == "npu"


def test_the_yaml_file_chooses_device_and_programs(monkeypatch):
    monkeypatch.setenv("TRIDAL_CONFIG", str(CONFIGS / "npu.yaml"))
    settings.reload()
    assert tridal.device().type == "npu"
    x = torch.randn(4096, 64, device=tridal.device())
    assert close(tridal.softmax(x), exact(x))
    assert [launch.programs for launch in board.launches] == [device.VECTOR_CORES]


@pytest.mark.parametrize(("num_programs", "programs"), [(7, 7), ("cores", device.VECTOR_CORES), (65_535, 4096)])
def test_programs_are_as_set(num_programs, programs):
    x = torch.randn(4096, 3000, device="npu")
    with tridal.use(backends={"npu": {"num_programs": num_programs}}):
        y = tridal.softmax(x)
    assert close(y[:5], exact(x[:5]))
    assert [launch.programs for launch in board.launches] == [programs]


def test_too_many_programs_are_refused():
    with (
        pytest.raises(SettingsError, match=r"num_programs: expected a positive integer below 65536"),
        tridal.use(backends={"npu": {"num_programs": 65_536}}),
    ):
        tridal.softmax(torch.randn(4, 4, device="npu"))


def test_runs_on_the_current_stream():
    stream = torch.npu.Stream()
    x = torch.randn(4, 4, device="npu")
    with torch.npu.stream(stream):
        tridal.softmax(x)
    tridal.softmax(x)
    assert [launch.stream for launch in board.launches] == [stream.npu_stream, torch.npu.current_stream().npu_stream]


def test_runs_on_a_stream_that_is_given():
    stream = torch.npu.Stream()
    before = torch.npu.current_stream()
    tridal.softmax(torch.randn(4, 4, device="npu"), stream=stream)
    assert [launch.stream for launch in board.launches] == [stream.npu_stream]
    assert torch.npu.current_stream() is before


def test_runs_on_a_stream_that_is_given_by_handle():
    tridal.softmax(torch.randn(4, 4, device="npu"), stream=0xBEEF)
    assert [launch.stream for launch in board.launches] == [0xBEEF]


def test_says_where_torch_npu_takes_no_handle(monkeypatch):
    monkeypatch.delattr(torch.npu, "ExternalStream")
    with pytest.raises(StreamError, match="npu devices take no raw stream handle"):
        tridal.softmax(torch.randn(4, 4, device="npu"), stream=0xBEEF)


def test_refuses_a_stream_of_another_device():
    stream = torch.npu.Stream(device=1)
    with pytest.raises(StreamError, match="npu:1") as caught:
        tridal.softmax(torch.randn(4, 4, device="npu:0"), stream=stream)
    assert "npu:0" in str(caught.value)
    assert not board.launches


def test_runs_where_the_tensor_lives_whichever_device_is_current():
    for index in (1, 0, 1):
        x = torch.randn(33, 65, device=f"npu:{index}")
        y = tridal.softmax(x)
        assert y.device == x.device
        assert close(y, exact(x))
        assert torch.npu.current_device() == 0
    assert [launch.device for launch in board.launches] == [1, 0, 1]
    assert [device.owners[launch.stream] for launch in board.launches] == [1, 0, 1]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "dim"), [((37, 53), -1), ((5, 300, 33), 1), ((3, 40_000), 1)])
def test_gradients(name, shape, dim):
    x = torch.randn(shape, device="npu", requires_grad=True)
    dy = torch.randn(shape, device="npu")
    y = getattr(tridal, name)(x, dim)
    y.backward(dy)
    reference = x.detach().cpu().double().requires_grad_()
    expected = getattr(torch, name)(reference, dim)
    expected.backward(dy.cpu().double())
    assert close(y, expected.detach())
    assert torch.allclose(x.grad.cpu().double(), reference.grad, rtol=1e-4, atol=1e-5)
    assert x.grad.device == x.device
    assert [launch.kernel.partition("_")[0] for launch in board.launches] == ["forward", "backward"]


def test_the_gradient_of_a_sum_which_torch_expands():
    x = torch.randn(37, 53, device="npu", requires_grad=True)
    (tridal.log_softmax(x) * 2).sum().backward()
    assert torch.allclose(x.grad.cpu(), 2 - 106 * torch.softmax(x.detach().cpu(), -1), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x = torch.randn(9, 4000, device="npu").to(dtype)
    y = tridal.softmax(x)
    assert y.dtype == dtype
    assert torch.allclose(y.cpu().double(), exact(x), rtol=2**-8, atol=1e-7)
    wide = tridal.softmax(x, dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert close(wide, exact(x))


def test_float64_goes_to_torch_or_is_refused():
    x = torch.randn(4, 5, dtype=torch.float64, device="npu")
    assert torch.equal(tridal.softmax(x).cpu(), torch.softmax(x.cpu(), -1))
    with tridal.use(fallback="error"), pytest.raises(NoBackendError, match="'npu' does not compute float64"):
        tridal.softmax(x)
    assert not board.launches


def test_masks_are_composed_with_the_plain_kernel():
    scores, mask = torch.randn(2, 3, 8, 200, device="npu"), torch.rand(2, 1, 8, 200, device="npu") > 0.3
    y = tridal.softmax(scores, mask=mask)
    assert close(y, exact(scores.cpu().masked_fill(~mask.cpu(), -torch.inf)))
    assert [launch.kernel for launch in board.launches] == ["forward"]
    extras = Extras(scale=1.0, mask=mask, causal=False, masked_rows="nan")
    assert execute.weighed(places.place_of(scores.device), scores, -1, scores.dtype, extras) is None


class Roomy:
    """The NPU's backend, if its tiles left room for masks."""

    name = "roomy"
    algorithms = backend.algorithms | {"masked"}

    def __getattr__(self, member):
        return getattr(backend, member)


@pytest.mark.parametrize("shape", [(2, 3, 8, 200), (1, 3, 4, 40_000)], ids=["tile", "looped"])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_the_weighing_kernels_compile_and_run_all_the_same(shape, kind):
    scores, keep = torch.randn(shape, device="npu", requires_grad=True), torch.rand(shape[0], 1, *shape[2:]) > 0.3
    mask = keep if kind is torch.bool else torch.randn(keep.shape).masked_fill(~keep, -torch.inf)
    registry.register(Roomy())
    try:
        with tridal.use(device="roomy"):
            y = tridal.softmax(scores, scale=0.5, mask=mask.npu(), causal=True, masked_rows="zero")
            (dx,) = torch.autograd.grad(y, scores, torch.ones_like(y) * 3 - y.detach())
    finally:
        registry.unregister("roomy")
    x = scores.detach().cpu().double() * 0.5
    x = x.masked_fill(~keep, -torch.inf) if kind is torch.bool else x + mask
    x = x.masked_fill(torch.ones(x.shape[-2:]).tril() == 0, -torch.inf)
    expected = torch.where((x == -torch.inf).all(-1, keepdim=True), 0.0, exact(x))
    assert close(y, expected)
    saved = y.detach().cpu().double()
    grad = 3 - saved
    assert close(dx, 0.5 * saved * (grad - (grad * saved).sum(-1, keepdim=True)))
    kernel = "looped" if shape[-1] > 1_000 else ""
    assert [launch.kernel.removesuffix("_looped") for launch in board.launches] == ["forward", "backward"]
    assert all(launch.kernel.endswith(kernel) for launch in board.launches)


def test_bad_input_is_said_before_anything_is_launched():
    with pytest.raises(DTypeError, match="dtype"):
        tridal.softmax(torch.zeros(2, 3, dtype=torch.int32, device="npu"))
    assert not board.launches


def test_strides_that_no_kernel_reads_are_copied():
    x = torch.randn(4, 6, 8, 10, device="npu").permute(0, 2, 1, 3)[:, ::2, ::3]
    assert close(tridal.softmax(x, 0), exact(x, 0))


def test_importing_tridal_imports_neither_torch_npu_nor_triton():
    code = "import sys, tridal; print(sorted({'torch_npu', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
