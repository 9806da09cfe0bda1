"""The configuration of the schedule `column_loop`, for rows that no other schedule can compute."""

from __future__ import annotations

from tridal.devices.types import DeviceProperties, KernelConfig, Problem
from tridal_cuda.sizes import FEW_ELEMENTS_PER_THREAD, NEIGHBOUR_ROWS, exp2_bias, max_elements, max_stages, warps_for


def column_loop(problem: Problem, device: DeviceProperties) -> KernelConfig:
    """Tiles of a quarter of the elements that a program can hold, in a pipeline of several stages."""
    if problem.layout == "inner":
        rows, elements_per_thread = NEIGHBOUR_ROWS // 2, FEW_ELEMENTS_PER_THREAD // 2
    else:
        rows, elements_per_thread = 1, FEW_ELEMENTS_PER_THREAD
    cols = max_elements(problem, device) // 4 // rows
    warps = warps_for(rows * cols, elements_per_thread)
    return KernelConfig("column_loop", rows, cols, warps, num_stages=max_stages(device), exp2_bias=exp2_bias(problem))
