"""CUDA plans of rows that fill too little of one tile: which have two, compiled for GPUs that are not present."""

from __future__ import annotations

from typing import Any

import pytest

import tridal
from tridal.devices.types import KernelConfig

pytest.importorskip("triton")


def plan_of(op: str, cols: int, arch: str = "h200", dtype: str = "bf16", **blocks: Any) -> Any:
    return tridal.plan(131_072, cols, dtype=dtype, op=op, arch=arch, **blocks)


@pytest.mark.parametrize(
    ("op", "cols", "arch", "blocks", "tiles"),
    [
        ("layer_norm", 1152, "h200", None, (1024, 128, 1, 1)),
        ("layer_norm", 7168, "h200", None, (4096, 4096, 4, 1)),
        ("modulated_layer_norm", 1152, "h200", 32, (1024, 128, 2, 1)),
        ("modulated_rms_norm", 3072, "sm_90", 32, (2048, 1024, 2, 1)),
        ("modulated_layer_norm", 2304, "h200", 32, (2048, 512, 2, 1)),
        ("rms_norm_backward", 2560, "h200", None, (2048, 512, 4, 3)),
        ("layer_norm_backward", 1152, "sm_80", None, (1024, 128, 2, 3)),
        ("rms_norm_backward", 5120, "sm_90", None, (4096, 1024, 4, 3)),
        ("rms_norm_backward", 6144, "h200", None, (4096, 2048, 8, 3)),
        ("layer_norm_backward", 6144, "h200", None, (4096, 2048, 4, 3)),
        ("gated_rms_norm", 4608, "h200", None, (4096, 512, 8, 1)),
        ("gated_rms_norm_backward", 8192, "h200", None, (4096, 4096, 8, 3)),
        ("layer_norm", 1153, "h200", None, (1024, 256, 1, 1)),
        ("rms_norm", 4609, "h200", None, (4096, 1024, 4, 1)),
        ("gated_rms_norm", 2305, "sm_90", None, (2048, 512, 4, 1)),
        ("layer_norm_backward", 1281, "h200", None, (1024, 512, 2, 1)),
        ("rms_norm_backward", 4097, "sm_90", None, (4096, 1, 8, 1)),
    ],
)
def test_rows_that_need_many_registers_have_two_tiles(
    op: str, cols: int, arch: str, blocks: int | None, tiles: tuple[int, ...]
) -> None:
    found = plan_of(op, cols, arch, blocks=blocks)
    config = found.config
    assert (config.cols, config.rest_cols, config.num_warps, config.num_stages) == tiles
    assert config.persistent == op.endswith("backward")
    assert found.resources.spills <= (160 if cols % 2 and op.endswith("backward") else 32)
    assert f"tiles of 1 x {config.cols} + {config.rest_cols}:" in found.reason


@pytest.mark.parametrize(
    ("op", "cols", "changed"),
    [
        ("rms_norm", 1152, {}),  # one number per column
        ("layer_norm", 1984, {}),  # little padding
        ("layer_norm", 640, {}),  # a tile has several rows
        ("modulated_layer_norm", 2048, {"blocks": 32}),
        ("rms_norm", 2561, {}),  # unaligned, one number per column, and little padding
        ("layer_norm", 4097, {"dtype": "fp32"}),  # a peeled tile has no padding
        ("layer_norm", 1537, {}),  # the rest would be as large as the first tile
        ("layer_norm", 16_385, {}),
        ("layer_norm_backward", 4609, {}),
        ("gated_rms_norm_backward", 4097, {}),  # three tensors
        ("modulated_layer_norm_backward", 5633, {"blocks": 32}),  # one program would be resident
        ("layer_norm", 1152, {"arch": "sm_90"}),  # more threads, which reload the row
        ("layer_norm_backward", 1152, {"dtype": "fp32"}),
        ("layer_norm_backward", 10_240, {}),  # several programs
        ("softmax", 1152, {}),
        ("softmax_backward", 1152, {}),
        ("log_softmax_backward", 2560, {"dtype": "fp32"}),
        ("swiglu", 1152, {}),
    ],
)
def test_other_rows_have_one_tile(op: str, cols: int, changed: dict[str, Any]) -> None:
    assert plan_of(op, cols, **changed).config.rest_cols == 0


@pytest.mark.parametrize(
    ("op", "cols", "tiles"),
    [
        ("rms_norm", 4609, (4096, 1024, 8)),
        ("layer_norm", 4609, (4096, 1024, 4)),
        ("gated_rms_norm", 1281, (1024, 512, 2)),
    ],
)
def test_unaligned_float32_rows_have_two_tiles(op: str, cols: int, tiles: tuple[int, ...]) -> None:
    config = plan_of(op, cols, dtype="fp32").config
    assert (config.cols, config.rest_cols, config.num_warps) == tiles


def test_two_tiles_have_more_bytes_in_flight_than_one() -> None:
    gradient = "layer_norm_backward"
    config = {"schedule": "whole_row", "rows": 1, "cols": 2048, "num_warps": 4, "num_stages": 3}
    with tridal.use(kernel_configs=[{"kernel": gradient, "dtype": "bf16", "cols": 1152, "config": config}]):
        one = plan_of(gradient, 1152)
    assert one.config.rest_cols == 0
    assert plan_of(gradient, 1152).occupancy > one.occupancy
    assert KernelConfig(**config).row_cols == 2048


@pytest.mark.parametrize(("cols", "reload", "per_thread"), [(2304, False, 16), (2560, True, 32), (5120, True, 32)])
def test_gated_rows_reload_if_the_rest_is_a_quarter(cols: int, reload: bool, per_thread: int) -> None:
    config = plan_of("gated_rms_norm", cols).config
    assert (config.reload, config.cols // config.num_warps // 32) == (reload, per_thread)


@pytest.mark.parametrize(("cols", "most"), [(781, 168), (1281, 128), (1537, 168), (4097, 128), (8193, 128)])
def test_sums_over_unaligned_rows_have_a_register_limit(cols: int, most: int) -> None:
    plan = plan_of("rms_norm_backward", cols)
    assert (plan.config.max_registers, plan.config.num_stages) == (most, 1)
    assert plan.occupancy >= 2
    assert plan_of("layer_norm_backward", 781).config.max_registers is None  # it needs almost all
