"""Tests the blocks of figures of the benchmark pages, which scripts/figures/benchmark_pages.py writes."""

from __future__ import annotations

from typing import Any


def test_a_workload_that_another_library_computes_faster_is_listed() -> None:
    from figures.benchmark_pages import BLOCKS

    row = {
        "op": "softmax", "group": "small", "dtype": "float32", "direction": "forward", "shape": "4096x256",
        "provider": "tridal", "ms": 1.0, "share_of_copy": 0.9, "share_noisy": True,
    }  # fmt: skip
    faster = {**row, "provider": "quack", "ms": 0.9, "share_of_copy": 1.0, "share_noisy": False}
    equal = {**row, "provider": "torch", "ms": 0.99}
    document: dict[str, Any] = {"op": "softmax", "measurements": [row, equal], "aims": {"small": {"forward": 0.95}}}
    assert BLOCKS["slower"](document)[2:] == []
    assert BLOCKS["result"](document) == ["tridal is the fastest, or within 2% of the fastest, for 1 of 1 workloads."]
    assert BLOCKS["aims"](document) == ["0 of 1 workloads reach the aim of their class of shapes."]
    document["measurements"] = [row, equal, faster]
    assert BLOCKS["slower"](document)[2:] == ["| 4096x256, float32 forward | ~0.90 | quack 1.00 | 11% |"]
    assert BLOCKS["result"](document)[0].endswith("quack is 11% faster for 4096x256, float32 forward.")
    assert BLOCKS["shapes"](document)[-1] == "| 4096x256 | ~0.90 (1.00) |"
