"""DTensor on process groups of two ranks, at night of four, and in a process that has not used it before.

Each check runs on every rank, on the CPU and on two accelerators if there are two. All checks share one start of the
processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch.distributed.tensor")
if not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import dtensor_block_checks  # noqa: F401
import dtensor_call_checks  # noqa: F401
import dtensor_kernel_checks  # noqa: F401
from dtensor_checks import four_ranks_exchange_statistics_along_each_dim, uneven_shards
from dtensor_loss_checks import CHECKS
from processes import python
from ranks import backends, failures_of
from tridal.devices.types import Backend


@pytest.fixture(scope="module", params=["auto", *backends()])
def failures(request: pytest.FixtureRequest) -> dict[tuple[str, int], str]:
    if sys.platform != "linux":
        pytest.skip("the processes are started in a way that works on Linux only")
    if request.param == "auto" and not (request.config.getoption("--matrix") or torch.accelerator.is_available()):
        pytest.skip("torch computes local tensors here: `--matrix` runs this")
    return failures_of(CHECKS, 2, request.param)


@pytest.mark.slow("the first one starts two ranks, which run all checks")
@pytest.mark.parametrize("name", CHECKS)
def test_check_passes_on_two_ranks(failures: dict[tuple[str, int], str], name: str) -> None:
    for (failed, rank), report in failures.items():
        assert failed != name, f"on rank {rank}:\n{report}"


@pytest.mark.slow("it starts four ranks")
@pytest.mark.nightly("test_check_passes_on_two_ranks: meshes_of_two_dims, and uneven_shards with a rank without rows")
def test_checks_pass_on_four_ranks() -> None:
    checks = (four_ranks_exchange_statistics_along_each_dim, uneven_shards)
    failures = failures_of({check.__name__: check for check in checks}, 4, "auto")
    assert not failures, "\n".join(failures.values())


def test_rules_are_not_imported_before_torchs_dtensor_module() -> None:
    """A torch without DTensor works, too."""
    program = "import sys; sys.modules['torch.distributed.tensor'] = None\n"
    program += "import torch, tridal; x = torch.randn(2, 4); tridal.rms_norm(x, (4,)); "
    program += "tridal.linear_cross_entropy(x, torch.randn(3, 4), torch.tensor([0, 2])); "
    program += "print('tridal.pytorch.torch.dtensor' in sys.modules)"
    assert python("-c", program).stdout == "False\n"


def test_the_first_dtensor_of_a_process_may_be_in_a_transform(
    device: torch.device, backend: Backend, tmp_path: Path
) -> None:
    program = f"""
import torch, tridal
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

torch.distributed.init_process_group(init_method="file://{tmp_path}/group", rank=0, world_size=1)
mesh = init_device_mesh("{device.type}", (1,))
local = torch.linspace(-1, 1, 16, device="{device.type}").view(4, 4).sin()

def loss(x):
    return (tridal.softmax(x, -1) ** 2).sum()

with tridal.use(device="{backend.name}"):
    x = distribute_tensor(local, mesh, [Shard(1)])
    found = torch.func.grad(loss)(x).full_tensor()
    leaf = x.detach().requires_grad_()
    loss(leaf).backward()
torch.testing.assert_close(found, leaf.grad.full_tensor())
torch.distributed.destroy_process_group()
"""
    python("-c", program)
