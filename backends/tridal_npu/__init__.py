"""The NPU backend, for Ascend devices with torch_npu and triton-ascend. Tiles have to fit in the unified buffer."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tridal.devices.types import BackendBase, DeviceProperties, LaunchPlan, Option, Probe, Problem
from tridal_npu.architectures import ARCHITECTURES, npu_properties
from tridal_npu.planning import plan

_PROGRAM_LIMIT = 65_536  # triton-ascend rejects a grid with this many programs or more
_EMPTY_CONTEXT = nullcontext()


class Npu(BackendBase):
    """Serves tensors of device type "npu". Vector cores do not support float64, so torch computes it."""

    protocol = 1
    name = "npu"
    device_type = "npu"
    dtypes = frozenset({"float16", "bfloat16", "float32"})
    schedules = frozenset({"whole_row", "column_loop"})
    interpreted = False
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

    def unavailable(self) -> str | None:
        """Returns the reason why NPUs cannot be used on this machine, or None if they can."""
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
        npu = _torch_npu()
        if npu is None or not npu.is_available():
            return "torch_npu sees no NPU: check the driver with npu-smi info, and check ASCEND_RT_VISIBLE_DEVICES"
        triton = importlib.util.find_spec("triton")
        if triton is None:
            return "triton-ascend is not installed"
        folders = triton.submodule_search_locations or ()
        if not any(Path(folder, "backends", "ascend").is_dir() for folder in folders):
            return (
                "the triton that is installed is not triton-ascend, which replaces it: "
                "pip uninstall triton, then pip install --force-reinstall triton-ascend"
            )
        if importlib.util.find_spec("pybind11") is None:
            return "triton-ascend needs pybind11 but does not install it: pip install pybind11"
        return None

    def device_count(self) -> int:
        """Returns the number of NPUs that torch_npu sees."""
        return int(_torch_npu().device_count())

    def properties(self, index: int) -> DeviceProperties:
        """Returns the properties of NPU `index`. torch_npu reports all except the size of the unified buffer."""
        npu = _torch_npu().get_device_properties(index)
        return npu_properties(npu.name.lower(), npu.name, npu.vector_core_num, npu.total_memory, npu.L2_cache_size)

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Returns the properties of example NPUs, by architecture name."""
        return ARCHITECTURES

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the launch plan of a problem. Does not use `probe`, because it needs no compiled kernel."""
        return plan(problem, device, options["num_programs"])

    def stream(self, index: int) -> int:
        """Returns the raw handle of torch_npu's current stream. triton-ascend launches on the same stream."""
        try:
            from torch_npu._C import _npu_getCurrentRawStream
        except ImportError:  # this version of torch_npu lacks the private function
            return int(_torch_npu().current_stream(index).npu_stream)
        return _npu_getCurrentRawStream(index)  # type: ignore[no-any-return]

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Returns torch_npu's device guard, or an empty context if NPU `index` is already the current device."""
        npu = _torch_npu()
        return _EMPTY_CONTEXT if npu.current_device() == index else npu.device(index)


def _torch_npu() -> Any:
    """Returns the module `torch.npu`, or None. torch_npu registers it when it is imported."""
    import torch

    return getattr(torch, "npu", None)


backend = Npu()
