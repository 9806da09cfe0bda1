"""The CUDA backend, for NVIDIA GPUs. Its plans depend on the registers, shared memory and warps of a multiprocessor."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tridal.devices.types import KERNEL_CONFIG, DeviceProperties, LaunchPlan, Probe, Problem, Resources
from tridal_accelerator import TorchBackend
from tridal_cuda.architectures import ARCHITECTURES, present_gpu
from tridal_cuda.planning import plan
from tridal_cuda.resources import read_resources


class Cuda(TorchBackend):
    """Serves tensors of device type "cuda". Rejects ROCm builds of torch, which use the same device type."""

    protocol = 2
    name = "cuda"
    device_type = "cuda"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    schedules = frozenset({"whole_row", "cooperative", "column_loop"})
    features = frozenset({"peel", "reload", "lanes", "rest_cols", "scale_mask"})
    install = "an NVIDIA driver, and a CUDA build of PyTorch, which includes Triton (pytorch.org, Get Started)"
    devices = ARCHITECTURES

    def unavailable(self) -> str | None:
        """Says why CUDA cannot be used on this machine. None stands for a machine where it can."""
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

    def properties(self, index: int) -> DeviceProperties:
        """Asks Triton's driver and torch for the properties of GPU `index`."""
        return present_gpu(index)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Plans a problem. This backend has no options."""
        return plan(problem, device, probe, options.get(KERNEL_CONFIG))

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Reads the registers and spills of a compiled kernel from its cubin."""
        return read_resources(asm["cubin"], shared_memory)


backend = Cuda()
