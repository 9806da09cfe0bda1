"""The CUDA backend: NVIDIA GPUs, planned by the registers, shared memory and warps that a multiprocessor has."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tridal.devices.types import DeviceProperties, LaunchPlan, Option, Probe, Problem, Resources
from tridal_cuda.architectures import ARCHITECTURES
from tridal_cuda.cubin import read_resources
from tridal_cuda.planning import plan

_ALREADY_CURRENT = nullcontext()


class Cuda:
    """Serves tensors of device type "cuda", unless torch is built for ROCm, whose tensors say "cuda" too."""

    name = "cuda"
    device_type = "cuda"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    algorithms = frozenset({"tile", "split", "looped", "edges", "rereads", "masked"})
    interpreted = False
    options: Mapping[str, Option] = {}
    install = "an NVIDIA driver, and a CUDA build of PyTorch, which brings Triton along (pytorch.org, Get Started)"

    def unavailable(self) -> str | None:
        """Says which is missing: a CUDA build of torch, a device, or Triton."""
        import torch

        if torch.version.hip is not None:
            return f"this torch ({torch.__version__}) is built for ROCm"
        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        if not torch.cuda.is_available():
            return "torch sees no CUDA device: look at nvidia-smi for the driver, and at CUDA_VISIBLE_DEVICES"
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        return None

    def device_count(self) -> int:
        """GPUs that torch sees."""
        import torch

        return torch.cuda.device_count()

    def properties(self, index: int) -> DeviceProperties:
        """What Triton's driver says of a GPU, and torch where the driver is silent."""
        return _properties(index)

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """A GPU of each compute capability."""
        return ARCHITECTURES

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """A tile by the width of a row, programs by occupancy."""
        return plan(problem, device, probe)

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Read from the cubin."""
        return read_resources(asm["cubin"], shared_memory)

    def stream(self, index: int) -> int:
        """Handle of torch's current stream."""
        import torch

        return torch._C._cuda_getCurrentRawStream(index)

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """torch's device guard, where it has anything to change."""
        import torch

        return _ALREADY_CURRENT if torch.cuda.current_device() == index else torch.cuda.device(index)


@functools.cache
def _properties(index: int) -> DeviceProperties:
    import torch
    from triton.runtime import driver

    known = torch.cuda.get_device_properties(index)
    told = driver.active.utils.get_device_properties(index)
    capability = 10 * known.major + known.minor
    relatives = [p for p in ARCHITECTURES.values() if p.target is not None and int(p.target[1]) // 10 == known.major]
    return DeviceProperties(
        name=known.name,
        arch=f"sm_{capability}",
        cores=told["multiprocessor_count"],
        core_name="SM",
        target=("cuda", capability, told["warpSize"]),
        warp_size=told["warpSize"],
        registers=told["max_num_regs"],
        shared_memory=told["max_shared_mem"],
        max_threads=known.max_threads_per_multi_processor,
        max_programs=next((p.max_programs for p in relatives), None),
        l2_cache=known.L2_cache_size,
        memory=known.total_memory,
    )


backend = Cuda()
