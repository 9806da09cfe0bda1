"""DTensor on process groups of two and four ranks: results, and the number of bytes that ranks exchange.

Each check runs on every rank, on the CPU and on two accelerators if there are two. All checks share one start of the
processes.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.tensor")
if not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing import assert_close

import loss_dtensor_checks
import norm_dtensor_checks
import third_party_dtensor_checks
import tridal
from exchanged_bytes import ExchangedBytes
from ranks import backends, failures_of
from torch_versions import shards_logsumexp
from tridal.devices.types import Backend

NAMES = ("softmax", "log_softmax")
CHECKS: dict[str, Callable[[DeviceMesh], None]] = {
    **{check.__name__: check for check in (*norm_dtensor_checks.CHECKS, *third_party_dtensor_checks.CHECKS)},
    **loss_dtensor_checks.CHECKS,
}


def check(function: Callable[[DeviceMesh], None]) -> Callable[[DeviceMesh], None]:
    CHECKS[function.__name__] = function
    return function


def compare(
    name: str, mesh: DeviceMesh, shape: tuple[int, ...], dim: int, placements: Any, grad_placements: Any = None
) -> tuple[int, int]:
    """Compares with torch on the whole tensor. Returns the bytes exchanged in the forward and in the backward."""
    torch.manual_seed(0)
    whole = (5 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    g = torch.randn(shape, dtype=torch.float64)
    expected = getattr(torch, name)(whole, dim)
    expected.backward(g)
    x = distribute_tensor(whole.detach(), mesh, placements).requires_grad_()
    sharded_g = distribute_tensor(g, mesh, grad_placements or placements)
    with ExchangedBytes() as forward:
        y = getattr(tridal, name)(x, dim)
    with ExchangedBytes() as backward:
        y.backward(sharded_g)
    assert tuple(y.placements) == tuple(placements), "the placements do not change"
    assert_close(y.full_tensor(), expected.detach())
    assert x.grad is not None
    assert_close(x.grad.full_tensor(), whole.grad)
    return forward.bytes, backward.bytes


@check
def sharded_rows_exchange_two_numbers_per_row(mesh: DeviceMesh) -> None:
    for name in NAMES:
        rows, cols = 64, 1024
        x = distribute_tensor(torch.randn(rows, cols), mesh, [Shard(-1)]).requires_grad_()
        with ExchangedBytes() as forward:
            y = getattr(tridal, name)(x)
        with ExchangedBytes() as backward:
            y.backward(torch.ones_like(y))
        assert (forward.bytes, backward.bytes) == (2 * 4 * rows, 4 * rows)
        with ExchangedBytes() as gathered:
            getattr(torch, name)(x, -1)
        assert gathered.bytes == rows * cols // mesh.size() * 4, "torch exchanges the whole shard"


@check
def scaled_and_masked_scores_exchange_two_numbers_per_row(mesh: DeviceMesh) -> None:
    rows, cols = 8, 64
    whole, keep = torch.randn(rows, cols, dtype=torch.float64), torch.rand(rows, cols) > 0.3
    torch.distributed.broadcast(keep, 0)
    x, mask = (distribute_tensor(tensor, mesh, [Shard(-1)]) for tensor in (whole, keep))
    with ExchangedBytes() as exchanged:
        y = tridal.softmax(x, scale=0.5, mask=mask)
    assert exchanged.bytes == 2 * 8 * rows
    expected = torch.softmax((0.5 * whole).masked_fill(~keep, -torch.inf), -1)
    assert_close(y.full_tensor(), expected)
    assert_close(torch.ops.tridal.softmax(x, -1, x.dtype, mask, 0.5).full_tensor(), expected)
    with pytest.raises(IndexError, match="dim 2 is out of range"):
        torch.ops.tridal.softmax(x, 2, x.dtype)
    with pytest.raises(ValueError, match="has a number per element: expected the shape"):
        torch.ops.tridal.softmax_backward(distribute_tensor(whole[:4], mesh, [Shard(-1)]), y, -1, x.dtype)


@check
def causal_scores_with_every_placement_equal_torch(mesh: DeviceMesh) -> None:
    whole, g = (torch.randn(3, 4, 6, dtype=torch.float64) for _ in range(2))
    upper = ~torch.ones(4, 6, dtype=torch.bool).tril()
    for placement, scale, zero in itertools.product((*map(Shard, range(3)), Replicate()), (1.0, 0.5), ("nan", "zero")):
        reference = whole.clone().requires_grad_()
        expected = torch.softmax((reference * scale).masked_fill(upper, -torch.inf), -1)
        expected.backward(g)
        x = distribute_tensor(whole, mesh, [placement]).requires_grad_()
        y = tridal.softmax(x, causal=True, scale=scale, masked_rows=zero)  # type: ignore[arg-type]
        y.backward(distribute_tensor(g, mesh, [placement]))
        assert_close(y.full_tensor(), expected.detach())
        assert x.grad is not None
        assert_close(x.grad.full_tensor(), reference.grad)


@check
def values_are_cast_before_the_computation(mesh: DeviceMesh) -> None:
    for values in (torch.tensor([[7e4, 0.0]]), torch.tensor([[2049, 2048, 0, 1]])):
        for placement in (Shard(1), Shard(0), Replicate()):
            x = distribute_tensor(values, mesh, [placement])
            y = tridal.softmax(x, -1, dtype=torch.float16).full_tensor()
            assert_close(y, torch.softmax(values, -1, dtype=torch.float16), equal_nan=True)


@check
def uneven_shards(mesh: DeviceMesh) -> None:
    for name, cols in itertools.product(NAMES, (1001, 3, mesh.size() - 1, 1)):
        compare(name, mesh, (5, cols), -1, [Shard(1)])
        compare(name, mesh, (cols, 5), 0, [Shard(0)])
        compare(name, mesh, (2, cols, 3), 1, [Shard(1)])


@check
def sharding_of_another_dim_exchanges_nothing(mesh: DeviceMesh) -> None:
    for name in NAMES:
        assert compare(name, mesh, (6, 10), -1, [Shard(0)]) == (0, 0)
        assert compare(name, mesh, (5, 3), -1, [Shard(0)]) == (0, 0)
        assert compare(name, mesh, (6, 10), -1, [Replicate()]) == (0, 0)


@check
def gradients_with_other_placements(mesh: DeviceMesh) -> None:
    for name, placement in itertools.product(NAMES, (Shard(0), Replicate())):
        compare(name, mesh, (6, 10), -1, [Shard(1)], [placement])


@check
def partial_input_is_reduced_first(mesh: DeviceMesh) -> None:
    for name in NAMES:
        torch.manual_seed(dist.get_rank())
        x = DTensor.from_local(torch.randn(4, 6), mesh, [Partial()])
        y = getattr(tridal, name)(x)
        assert tuple(y.placements) == (Replicate(),)
        assert_close(y.full_tensor(), getattr(torch, name)(x.full_tensor(), -1))


@check
def dtypes_equal_torch(mesh: DeviceMesh) -> None:
    for name, dtype, cast in itertools.product(NAMES, (torch.bfloat16, torch.float32), (None, torch.float32)):
        whole = torch.randn(4, 10).to(dtype)
        x = distribute_tensor(whole, mesh, [Shard(1)]).requires_grad_()
        y = getattr(tridal, name)(x, -1, cast)
        expected = getattr(torch, name)(whole, -1, cast)
        assert y.dtype == expected.dtype
        assert_close(y.full_tensor(), expected, rtol=2e-2, atol=1e-2)
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == dtype


@check
def rows_with_inf_and_nan(mesh: DeviceMesh) -> None:
    whole = torch.randn(4, 10, dtype=torch.float64)
    whole[0] = -torch.inf
    whole[1, 0] = torch.nan
    whole[2, 9] = torch.inf
    whole[3, :5] = -torch.inf
    for name in NAMES:
        y = getattr(tridal, name)(distribute_tensor(whole, mesh, [Shard(1)])).full_tensor()
        assert_close(y, getattr(torch, name)(whole, -1), equal_nan=True)


@check
def compiled_function_equals_torch(mesh: DeviceMesh) -> None:
    for name in NAMES:
        torch.compiler.reset()
        whole = torch.randn(4, 11, dtype=torch.float64)
        x = distribute_tensor(whole, mesh, [Shard(1)]).requires_grad_()
        y = torch.compile(getattr(tridal, name), fullgraph=True, backend="aot_eager")(x)
        assert_close(y.full_tensor(), getattr(torch, name)(whole, -1))
        y.sin().sum().backward()
        reference = whole.clone().requires_grad_()
        getattr(torch, name)(reference, -1).sin().sum().backward()
        assert x.grad is not None
        assert_close(x.grad.full_tensor(), reference.grad)


@check
def double_backward_equals_torch(mesh: DeviceMesh) -> None:
    for name in NAMES:
        whole = torch.randn(4, 6, dtype=torch.float64).requires_grad_()
        x = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
        (g,) = torch.autograd.grad(getattr(tridal, name)(x).square().sum(), x, create_graph=True)
        (e,) = torch.autograd.grad(getattr(torch, name)(whole, -1).square().sum(), whole, create_graph=True)
        (gg,) = torch.autograd.grad(g.sin().sum(), x)
        (ee,) = torch.autograd.grad(e.sin().sum(), whole)
        assert_close(gg.full_tensor(), ee)


@check
def gradient_on_another_mesh_raises(mesh: DeviceMesh) -> None:
    y = tridal.softmax(distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)]).requires_grad_())
    other = init_device_mesh(mesh.device_type, (1, mesh.size()))
    grad = distribute_tensor(torch.randn(4, 6), other, [Replicate(), Shard(1)])
    with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=r"(?i)mesh|placements"):
        y.backward(grad)


def two_dimensional(mesh: DeviceMesh) -> None:
    square = init_device_mesh(mesh.device_type, (2, 2))
    for name in NAMES:
        assert compare(name, square, (8, 12), -1, [Shard(0), Shard(1)]) == (2 * 8 * 4, 8 * 4)
        assert compare(name, square, (8, 12), -1, [Shard(1), Shard(1)]) == (2 * 2 * 8 * 8, 2 * 8 * 8)
        compare(name, square, (7, 13), -1, [Shard(1), Shard(0)])
        compare(name, square, (7, 13), 0, [Shard(1), Shard(0)])
        compare(name, square, (7, 13), -1, [Shard(1), Replicate()])
        compare(name, square, (3, 5), -1, [Shard(1), Shard(1)])


@pytest.fixture(scope="module", params=["auto", *backends()])
def failures(request: pytest.FixtureRequest) -> dict[tuple[str, int], str]:
    if sys.platform != "linux":
        pytest.skip("the processes are started in a way that works on Linux only")
    if request.param == "auto" and not (request.config.getoption("--matrix") or torch.accelerator.is_available()):
        pytest.skip("torch computes local tensors here: `--matrix` runs this")
    return failures_of(CHECKS, 2, request.param)


@pytest.mark.parametrize("name", CHECKS)
def test_check_passes_on_two_ranks(failures: dict[tuple[str, int], str], name: str) -> None:
    for (failed, rank), report in failures.items():
        assert failed != name, f"on rank {rank}:\n{report}"


def test_checks_pass_on_a_mesh_of_two_by_two_ranks() -> None:
    failures = failures_of({"two_dimensional": two_dimensional, "uneven_shards": uneven_shards}, 4, "auto")
    assert not failures, "\n".join(failures.values())


def output_of(program: str) -> str:
    """Returns the output of a program in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_rules_are_not_imported_before_torchs_dtensor_module() -> None:
    program = "import sys, torch, tridal; tridal.softmax(torch.randn(2)); "
    program += "print('tridal.pytorch.torch.dtensor' in sys.modules)"
    assert output_of(program) == "False"
    blocked = "import sys; sys.modules['torch.distributed.tensor'] = None\n"
    output_of(blocked + "import torch, tridal; tridal.rms_norm(torch.randn(2, 4), (4,))")


@pytest.mark.parametrize(
    "call",
    [
        "softmax(x, -1)",
        "log_softmax(x, -1)",
        "rms_norm(x, (4,))",
        "layer_norm(x, (4,))",
        pytest.param("cross_entropy(x, x.detach().softmax(-1))", marks=shards_logsumexp),
        pytest.param("linear_cross_entropy(x, x.detach(), target)", marks=shards_logsumexp),
    ],
)
def test_the_first_dtensor_of_a_process_may_be_in_a_transform(
    device: torch.device, backend: Backend, tmp_path: Path, call: str
) -> None:
    output_of(f"""
import torch, tridal
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

torch.distributed.init_process_group(init_method="file://{tmp_path}/group", rank=0, world_size=1)
mesh = init_device_mesh("{device.type}", (1,))
local = torch.linspace(-1, 1, 16, device="{device.type}").view(4, 4).sin()
target = distribute_tensor(torch.arange(4, device="{device.type}"), mesh, [Replicate()])

def loss(x):
    return (tridal.{call} ** 2).sum()

with tridal.use(device="{backend.name}"):
    x = distribute_tensor(local, mesh, [Shard(1)])
    found = torch.func.grad(loss)(x).full_tensor()
    leaf = x.detach().requires_grad_()
    loss(leaf).backward()
torch.testing.assert_close(found, leaf.grad.full_tensor())
torch.distributed.destroy_process_group()
""")
