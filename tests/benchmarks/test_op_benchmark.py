"""Benchmarks of ops: what follows from the roles of their tensors, what an `OpBenchmark` declares, and providers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tridal
from op_samples import LOGSUMEXP, SKIP_NORM
from several_results import ARGMAX, BY_SUM, ROW_ENERGY, WEIGH
from third_party_op import UNIT_NORM
from tridal.benchmarks import measuring, results, timing
from tridal.benchmarks.op_benchmark import OpBenchmark, benchmark_of, measured_ops
from tridal.benchmarks.providers import COPY, PROVIDERS, Provider
from tridal.benchmarks.results import Row
from tridal.benchmarks.workloads import SHAPE_CLASSES, Workload, make_workloads
from tridal.ops import Op, per_column, per_element

CPU = torch.device("cpu")
PUBLISHED = Path(__file__).parents[2] / "docs" / "benchmarks"
SMALL = Workload("grid", "softmax", "forward", "float32", (2, 3))


@pytest.fixture(autouse=True)
def _one_short_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are not tested, so noisy ones are not measured again."""
    monkeypatch.setattr(timing, "ATTEMPTS", 1)
    monkeypatch.setattr(timing, "_CPU_ROUND_SECONDS", 0.0)


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("op", sorted(measured_ops()))
def test_implementations_without_another_library_agree_with_torch(op: str, dim: int) -> None:
    entry, local = benchmark_of(op), ("tridal", "torch", "naive", "torch.jit.script")
    names = [name for name in local if name in entry.functions and (name != local[-1] or sys.version_info < (3, 14))]
    if entry.suite != "rows":
        with pytest.raises(NotImplementedError, match="supports only the last dimension"):
            entry.functions["tridal"](dim if dim != -1 else 0)
        dim = -1
    shape = (6, 5) if dim == -1 else (3, 4, 5)
    for direction in entry.traffic:
        rows = measure(Workload("grid", op, direction, "float32", shape, dim), *map(PROVIDERS.__getitem__, names))
        assert {row["provider"]: row["skipped"] for row in rows} == dict.fromkeys(names)


@pytest.fixture
def add_benchmark(monkeypatch: pytest.MonkeyPatch, add_op: Any) -> Any:
    """Returns a function that adds UNIT_NORM to the table of ops, with this benchmark."""

    def add(entry: OpBenchmark) -> None:
        monkeypatch.setattr(sys.modules[__name__], "ENTRY", entry, raising=False)
        add_op(replace(UNIT_NORM, benchmark=f"{__name__}:ENTRY"))

    return add


@pytest.mark.parametrize("file", sorted(PUBLISHED.rglob("results.json")), ids=lambda file: file.parent.name)
def test_useful_traffic_and_shapes_are_those_of_the_published_results(file: Path) -> None:
    """Rates of former runs can be compared with those of new ones."""
    document = results.load(file)
    entry, rows = benchmark_of(document["op"]), document["measurements"]
    assert entry.traffic == document["passes"]
    for group in {row["group"] for row in rows}:
        labels = [w.label for w in make_workloads([SHAPE_CLASSES[group]], document["op"], ["forward"], ["float32"])]
        assert labels == list(dict.fromkeys(row["shape"] for row in rows if row["group"] == group))


PLAIN = OpBenchmark(tensors=(per_element("input"), per_column("weight"), per_column("skip")))
TENSORS: dict[str, tuple[Op, dict[str, int], list[tuple[int, ...]]]] = {
    "skip_norm": (SKIP_NORM, {"forward": 4, "backward": 4}, [(6, 8, 2), (8,), (8,), (6, 8, 2)]),
    "skip_norm without residual": (
        replace(SKIP_NORM, benchmark=f"{__name__}:PLAIN"), {"forward": 2, "backward": 3}, [(6, 8, 2), (8,), (8,)]
    ),
    "logsumexp": (LOGSUMEXP, {"forward": 1, "backward": 2}, [(6, 8, 2)]),
    "three results": (WEIGH, {"forward": 2, "backward": 3}, [(6, 8, 2), (8,)]),
    "no kernel of the gradient": (BY_SUM, {"forward": 2, "backward": 3}, [(6, 8, 2)]),
    "no gradient": (ROW_ENERGY, {"forward": 1}, [(6, 8, 2)]),
    "an index": (ARGMAX, {"forward": 1}, [(6, 8, 2)]),
}  # fmt: skip
"""Ops of third parties, their traffic, and the shapes of their tensors along dim 1."""


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_traffic_and_implementations_follow_from_the_roles(add_op: Any, name: str) -> None:
    op, traffic, shapes = TENSORS[name]
    add_op(op)
    entry, workload = benchmark_of(op.name), Workload("grid", op.name, "forward", "bfloat16", (6, 8, 2), 1)
    assert entry.traffic == traffic
    assert [tuple(tensor.shape) for tensor in measuring.make_inputs(workload, entry, CPU).tensors] == shapes
    with tridal.use(device="interpreter", fallback="error"), tridal.record_calls() as calls:
        for direction in traffic:
            rows = measure(replace(workload, direction=direction), PROVIDERS["tridal"], PROVIDERS["reference"])
            assert {row["provider"]: row["skipped"] for row in rows} == {"tridal": None, "reference": None}
            for row in rows:
                assert row["gbps"] * row["ms"] == pytest.approx(traffic[direction] * 6 * 8 * 2 * 2 * 1e-6)
    backward = set() if len(traffic) == 1 or op.gradient is None else {f"{op.name}_backward"}
    assert {call.op for call in calls if call.backend == "interpreter"} == {op.name} | backward


def measure(workload: Workload, *providers: Provider) -> list[Row]:
    rows = measuring.measure(workload, providers, CPU)
    assert rows[0]["provider"] == COPY
    return rows[1:]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_entry_of_a_third_party_declares_arguments_traffic_and_peers(add_benchmark: Any, direction: str) -> None:
    """An op with a weight, whose gradient is computed too, and with one output per row."""

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x * weight).sum(-1)

    def without_weight_gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return loss(x, weight.detach()) + 0 * weight.sum()

    functions = {
        "reference": lambda dim: loss, "tridal": lambda dim: loss, "peer": lambda dim: without_weight_gradient,
        "nan": lambda dim: lambda x, weight: loss(x, weight) * torch.nan,
    }  # fmt: skip
    tensors, traffic = (per_element("input"), per_column("weight")), {"forward": 1, "backward": 2}
    add_benchmark(OpBenchmark(functions, tensors=tensors, traffic=traffic))
    workload = Workload("grid", "unit_norm", direction, "float32", (5, 7))
    ours, peer, nan = measure(workload, PROVIDERS["tridal"], Provider("peer"), Provider("nan"))
    assert ours["gbps"] == pytest.approx(traffic[direction] * 5 * 7 * 4 / ours["ms"] * 1e-6)
    expected = None if direction == "forward" else "ArithmeticError: wrong by 1 of the largest result"
    assert (ours["skipped"], peer["skipped"]) == (None, expected)
    assert nan["skipped"] == "ArithmeticError: wrong by nan of the largest result"


def test_provider_without_its_package_is_skipped_with_the_reason() -> None:
    provider = Provider("torch", package="no_such_package_anywhere")
    assert provider.missing == "no_such_package_anywhere is not installed: pip install torch"
    assert provider.version is None
    (row,) = measure(SMALL, provider)
    assert row["ms"] is row["ms_20"] is row["ms_80"] is row["gbps"] is None
    assert row["skipped"] == "ModuleNotFoundError: no_such_package_anywhere is not installed: pip install torch"
