"""The XPU backend, for Intel GPUs. Its plans depend on the registers, hardware threads and SLM of an Xe-core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tridal.devices.types import KERNEL_CONFIG, DeviceProperties, LaunchPlan, Probe, Problem, Resources
from tridal_accelerator import TorchBackend, triton_has
from tridal_xpu.architectures import ARCHITECTURES, present_gpu
from tridal_xpu.planning import plan
from tridal_xpu.resources import read_resources


class Xpu(TorchBackend):
    """Serves tensors of device type "xpu". Not all of these GPUs support float64, so torch computes it."""

    protocol = 2
    name = "xpu"
    device_type = "xpu"
    stream_handle = "sycl_queue"
    features = frozenset({"scale_mask"})
    install = (
        "Intel's GPU driver, and an XPU build of PyTorch, which includes Triton: pip install torch --index-url URL, "
        "where URL is PyTorch's index of XPU builds (pytorch.org, Get Started), then pip install 'tridal[xpu]'"
    )
    devices = ARCHITECTURES

    def unavailable(self) -> str | None:
        """Says why Intel GPUs cannot be used on this machine. None stands for a machine where they can."""
        import torch

        if not getattr(torch._C, "_has_xpu", False):
            return f"this torch ({torch.__version__}) is built without XPU"
        if not self.module().is_available():
            return (
                "torch sees no Intel GPU: check the driver with xpu-smi discovery or clinfo, check that the user is in "
                "the group render, and check ZE_AFFINITY_MASK"
            )
        if (has_backend := triton_has("intel")) is None:
            return "the package triton is not installed: reinstall the XPU build of torch, which requires triton-xpu"
        if not has_backend:
            return (
                "the triton that is installed is not triton-xpu, which replaces it: uninstall triton, then reinstall "
                "the XPU build of torch with the packages it requires"
            )
        return None

    def properties(self, index: int) -> DeviceProperties:
        """Describes GPU `index`. Raises PlanError for an architecture without plans."""
        return present_gpu(index)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Plans a problem. Without Intel's Triton, no kernel is compiled for the plan."""
        return plan(problem, device, probe if triton_has("intel") else None, options.get(KERNEL_CONFIG))

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Reads what the compiler reports of a kernel, see `read_resources`."""
        return read_resources(asm["spv"], shared_memory)


backend = Xpu()
