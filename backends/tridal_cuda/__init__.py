"""The CUDA backend, for NVIDIA GPUs. Its plans depend on the registers, shared memory and warps of a multiprocessor."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tridal.devices.types import DeviceProperties, LaunchPlan, Option, Probe, Problem, Resources
from tridal_cuda.architectures import ARCHITECTURES, present_gpu
from tridal_cuda.planning import plan
from tridal_cuda.resources import read_resources

_ALREADY_CURRENT = nullcontext()


class Cuda:
    """Serves tensors of device type "cuda". ROCm builds of torch use that type too, and are rejected."""

    name = "cuda"
    device_type = "cuda"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    schedules = frozenset({"whole_row", "cooperative", "column_loop", "peel", "reload", "scale_mask"})
    interpreted = False
    options: Mapping[str, Option] = {}
    install = "an NVIDIA driver, and a CUDA build of PyTorch, which includes Triton (pytorch.org, Get Started)"

    def unavailable(self) -> str | None:
        """The missing requirement: a CUDA build of torch, a device, or Triton; None if nothing is missing."""
        import torch

        if torch.version.hip is not None:
            return f"this torch ({torch.__version__}) is built for ROCm"
        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        if not torch.cuda.is_available():
            return "torch sees no CUDA device: check the driver with nvidia-smi, and check CUDA_VISIBLE_DEVICES"
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        return None

    def device_count(self) -> int:
        """Number of GPUs that torch sees."""
        import torch

        return torch.cuda.device_count()

    def properties(self, index: int) -> DeviceProperties:
        """See `present_gpu`."""
        return present_gpu(index)

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """One GPU of each compute capability."""
        return ARCHITECTURES

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """See `tridal_cuda.planning`. There are no options."""
        return plan(problem, device, probe)

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """The resources in the cubin."""
        return read_resources(asm["cubin"], shared_memory)

    def stream(self, index: int) -> int:
        """Handle of torch's current stream. torch's private function avoids a Stream object."""
        import torch

        try:
            return torch._C._cuda_getCurrentRawStream(index)
        except AttributeError:  # a torch without it
            return int(torch.cuda.current_stream(index).cuda_stream)

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """torch's device guard; an empty context if the device is already current."""
        import torch

        return _ALREADY_CURRENT if torch.cuda.current_device() == index else torch.cuda.device(index)


backend = Cuda()
