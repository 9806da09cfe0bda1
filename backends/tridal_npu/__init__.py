"""The NPU backend, for Ascend devices with torch_npu and triton-ascend. Tiles have to fit in the unified buffer."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tridal.devices.types import KERNEL_CONFIG, DeviceProperties, LaunchPlan, Option, Probe, Problem
from tridal_accelerator import TorchBackend, triton_has
from tridal_npu.architectures import ARCHITECTURES, npu_properties
from tridal_npu.planning import plan

_PROGRAM_LIMIT = 65_536  # triton-ascend rejects a grid with this many programs or more


class Npu(TorchBackend):
    """Serves tensors of device type "npu". Vector cores do not support float64, so torch computes it."""

    protocol = 2
    name = "npu"
    device_type = "npu"
    private = "torch_npu._C"  # triton-ascend launches on the same stream
    options: Mapping[str, Option] = {
        "num_programs": Option(
            default=32,
            expected=f"a positive integer below {_PROGRAM_LIMIT}, or 'cores' for one program per vector core",
            accepts=lambda value: value == "cores" or (type(value) is int and 0 < value < _PROGRAM_LIMIT),
            help="number of programs of a launch; each loops over its share of the tiles",
        )
    }
    install = (
        "CANN (hiascend.com) and, in a Python environment without a community triton, pip install 'tridal[npu]', "
        "which installs torch_npu and triton-ascend"
    )
    devices = ARCHITECTURES

    def unavailable(self) -> str | None:
        """Says why NPUs cannot be used on this machine. None stands for a machine where they can."""
        if importlib.util.find_spec("torch_npu") is None:
            return "torch_npu is not installed"
        try:
            import torch_npu  # noqa: F401  it imports torch and registers torch.npu
        except Exception as error:  # if CANN is missing, the exception's type varies
            return (
                f"torch_npu is installed but can't be imported ({type(error).__name__}: {error}): check that CANN is "
                "installed and its set_env.sh is sourced. Until then, set TORCH_DEVICE_BACKEND_AUTOLOAD=0, so that "
                "torch can be imported"
            )
        npu = self.module()
        if npu is None or not npu.is_available():
            return "torch_npu sees no NPU: check the driver with npu-smi info, and check ASCEND_RT_VISIBLE_DEVICES"
        if (has_backend := triton_has("ascend")) is None:
            return "triton-ascend is not installed"
        if not has_backend:
            return (
                "the triton that is installed is not triton-ascend, which replaces it: "
                "pip uninstall triton, then pip install --force-reinstall triton-ascend"
            )
        if importlib.util.find_spec("pybind11") is None:
            return "triton-ascend needs pybind11 but does not install it: pip install pybind11"
        return None

    def properties(self, index: int) -> DeviceProperties:
        """Describes NPU `index`. torch_npu reports all but the size of the unified buffer."""
        npu = self.module().get_device_properties(index)
        return npu_properties(npu.name.lower(), npu.name, npu.vector_core_num, npu.total_memory, npu.L2_cache_size)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Plans a problem. It needs no compiled kernel, so `probe` is not used."""
        return plan(problem, device, options["num_programs"], options.get(KERNEL_CONFIG))


backend = Npu()
