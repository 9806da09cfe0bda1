"""CUDA plans of kernels that read numbers per column, compiled for a GPU that is not present."""

from __future__ import annotations

from typing import Any

import pytest

import tridal

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("op", "cols", "expected"),
    [  # schedule, columns of a tile, warps, stages, reload
        ("rms_norm", 32_768, ("whole_row", 32_768, 32, 1, True)),  # one number per column
        ("layer_norm", 32_768, ("cooperative", 4096, 2, 3, False)),
        ("rms_norm", 65_536, ("cooperative", 4096, 2, 1, False)),
        ("gated_rms_norm", 4096, ("whole_row", 4096, 8, 1, False)),
    ],
)
def test_wide_float32_rows_depend_on_what_else_is_read(op: str, cols: int, expected: tuple[Any, ...]) -> None:
    c = tridal.plan(131_072, cols, op=op, arch="h200").config
    assert (c.schedule, c.cols, c.num_warps, c.num_stages, c.reload) == expected


@pytest.mark.parametrize(
    ("op", "cols", "dtype", "block"),
    [
        ("rms_norm_backward", 262_144, "bf16", 1024),
        ("rms_norm_backward", 1_048_576, "bf16", 2048),
        ("gated_rms_norm_backward", 262_144, "bf16", 2048),
        ("gated_rms_norm_backward", 131_072, "fp32", 1024),
    ],
)
def test_blocks_of_wide_gradients_depend_on_the_gate(op: str, cols: int, dtype: str, block: int) -> None:
    assert tridal.plan(1024, cols, dtype=dtype, op=op, arch="h200").config.cols == block
