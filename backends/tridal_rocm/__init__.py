"""The ROCm backend, for AMD GPUs. Its plans depend on the registers, waves and LDS of a compute unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tridal.devices.types import KERNEL_CONFIG, DeviceProperties, LaunchPlan, Probe, Problem, Resources
from tridal_accelerator import TorchBackend, triton_has
from tridal_rocm.architectures import ARCHITECTURES, present_gpu
from tridal_rocm.planning import plan
from tridal_rocm.resources import read_resources


class Rocm(TorchBackend):
    """Serves tensors of device type "cuda" of ROCm builds of torch. Rejects other builds."""

    protocol = 2
    name = "rocm"
    device_type = "cuda"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    features = frozenset({"peel", "scale_mask"})
    install = (
        "AMD's driver amdgpu, and a ROCm build of PyTorch, which includes Triton: pip install torch --index-url URL, "
        "where URL is PyTorch's index of ROCm builds (pytorch.org, Get Started), then pip install 'tridal[rocm]'"
    )
    devices = ARCHITECTURES

    def unavailable(self) -> str | None:
        """Says why ROCm cannot be used on this machine. None stands for a machine where it can."""
        import torch

        if torch.version.hip is None:
            return f"this torch ({torch.__version__}) is built {'for CUDA' if torch.version.cuda else 'without ROCm'}"
        if not torch.cuda.is_available():
            return (
                "torch sees no AMD GPU: check the driver with rocminfo, check that the user is in the groups render "
                "and video, and check HIP_VISIBLE_DEVICES"
            )
        if (has_backend := triton_has("amd")) is None:
            return "the package triton is not installed: reinstall the ROCm build of torch, which requires it"
        if not has_backend:
            return (
                "the triton that is installed has no AMD backend: uninstall it, then reinstall the ROCm build of torch "
                "with the packages it requires"
            )
        return None

    def properties(self, index: int) -> DeviceProperties:
        """Describes GPU `index`. Raises PlanError for an architecture without plans."""
        return present_gpu(index)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Plans a problem. This backend has no options."""
        return plan(problem, device, probe, options.get(KERNEL_CONFIG))

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Reads the registers and spills of a compiled kernel from its assembly."""
        return read_resources(asm["amdgcn"], shared_memory)


backend = Rocm()
