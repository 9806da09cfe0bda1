"""The NPU backend: Ascend devices by torch_npu and triton-ascend, planned by vector cores and the unified buffer."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tridal.devices.types import DeviceProperties, LaunchPlan, Option, Probe, Problem, Resources
from tridal_npu.architectures import ARCHITECTURES, unified_buffer_of
from tridal_npu.tiling import plan

PROGRAM_LIMIT = 65_536  # triton-ascend refuses a grid of so many programs

_ALREADY_CURRENT = nullcontext()


def _is_num_programs(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 < value < PROGRAM_LIMIT
    return value == "cores"


class Npu:
    """Serves tensors of device type "npu". float64 goes to torch: the vector cores have none."""

    name = "npu"
    device_type = "npu"
    dtypes = frozenset({"float16", "bfloat16", "float32"})
    algorithms = frozenset({"tile", "looped"})
    interpreted = False
    options: Mapping[str, Option] = {
        "num_programs": Option(
            default=32,
            expected=f"a positive integer below {PROGRAM_LIMIT}, or 'cores' for one program a vector core",
            accepts=_is_num_programs,
            help="programs of a launch, each of which loops over its share of the tiles",
        )
    }
    install = (
        "CANN (hiascend.com) and, in a Python environment without a community triton, pip install 'tridal[npu]', "
        "which brings torch_npu and triton-ascend"
    )

    def unavailable(self) -> str | None:
        """Says which is missing: torch_npu, CANN, a board, or triton-ascend."""
        if importlib.util.find_spec("torch_npu") is None:
            return "torch_npu is not installed"
        try:
            import torch_npu  # noqa: F401  registers torch.npu, and imports torch
        except Exception as error:  # whatever a library that finds no CANN raises
            return (
                f"torch_npu is installed but can't be imported ({type(error).__name__}: {error}): is CANN installed, "
                "and its set_env.sh sourced? Until then TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch itself importable"
            )
        if not _torch_npu().is_available():
            return "torch_npu sees no NPU: look at npu-smi info for the driver, and at ASCEND_RT_VISIBLE_DEVICES"
        triton = importlib.util.find_spec("triton")
        if triton is None:
            return "triton-ascend is not installed"
        folders = triton.submodule_search_locations or ()
        if not any(Path(folder, "backends", "ascend").is_dir() for folder in folders):
            return (
                "the triton that is installed is not triton-ascend, which takes its place: "
                "pip uninstall triton, then pip install --force-reinstall triton-ascend"
            )
        if importlib.util.find_spec("pybind11") is None:
            return "triton-ascend needs pybind11 and does not bring it: pip install pybind11"
        return None

    def device_count(self) -> int:
        """NPUs that torch_npu sees."""
        return int(_torch_npu().device_count())

    def properties(self, index: int) -> DeviceProperties:
        """What torch_npu says of an NPU, and its unified buffer by its name."""
        known = _torch_npu().get_device_properties(index)
        return DeviceProperties(
            name=known.name,
            arch=known.name.lower(),
            cores=known.vector_core_num,
            core_name="vector core",
            target=("npu", known.name, 0),
            shared_memory=unified_buffer_of(known.name),
            l2_cache=known.L2_cache_size,
            memory=known.total_memory,
        )

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """An NPU of each kind."""
        return ARCHITECTURES

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """A fixed number of programs, tiles that fit the unified buffer. Nothing is compiled for it."""
        return plan(problem, device, options["num_programs"])

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """The plan asks for nothing that only a compiler knows."""
        raise NotImplementedError("an NPU's plan needs no resources of a compiled kernel")

    def stream(self, index: int) -> int:
        """Handle of torch_npu's current stream: the one that triton-ascend itself would launch on."""
        from torch_npu._C import _npu_getCurrentRawStream

        return _npu_getCurrentRawStream(index)  # type: ignore[no-any-return]

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """torch_npu's device guard, where it has anything to change."""
        npu = _torch_npu()
        return _ALREADY_CURRENT if npu.current_device() == index else npu.device(index)


def _torch_npu() -> Any:
    """The device module that importing torch_npu registers."""
    import torch

    return torch.npu  # type: ignore[attr-defined]


backend = Npu()
