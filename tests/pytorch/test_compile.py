"""torch.compile and torch.export: one graph with one op, forward and backward, and one compilation for all batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.testing import assert_close

import tridal
from op_samples import KINDS, OPS, SAMPLES, Sample, gradients
from torch_versions import aot_inductor

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MASKED = "softmax, scaled and masked"
COMPILED = OPS | {name: SAMPLES[name] for name in (MASKED, "cross_entropy of probabilities")}
SAME_PATH = "this test with an op that is declared in the same way, and test_compiled_forward_and_backward..."
EACH = pytest.mark.parametrize(
    "sample",
    [
        pytest.param(sample, id=name, marks=pytest.mark.nightly(SAME_PATH) if name in {*OPS} - {*KINDS} else ())
        for name, sample in COMPILED.items()
    ],
)


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def tensors_of(sample: Sample, rows: int, device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """Returns the tensors of a call with this number of rows, which have 5 columns."""
    return sample.leaves(*((5, rows) if sample.dim == 0 else (rows, 5)), device=device)


class GraphRecorder:
    """A compiler backend that records the ops of tridal in each graph."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        self.graphs.append([name for name in names if "tridal" in name])
        return graph.forward


def check_compiled(sample: Sample, device: torch.device, **options: Any) -> None:
    """Compares a compiled function and its gradients with torch's ops, for two numbers of rows."""

    def block(function: Callable[..., Any], input: torch.Tensor, others: dict[str, torch.Tensor]) -> Any:
        return function(input=input * 2, **others)

    compiled = torch.compile(block, fullgraph=True, **options)
    for rows in (6, 9):
        tensors = tensors_of(sample, rows, device)
        others = {name: tensor for name, tensor in tensors.items() if name != "input"}
        ours = compiled(sample.function, tensors["input"], others)
        theirs = block(sample.expected, tensors["input"], others)
        assert_close(ours, theirs)
        assert_close(*(gradients(lambda y=y, **_: y, tensors) for y in (ours, theirs)))


@pytest.mark.parametrize("sample", COMPILED.values(), ids=COMPILED)
def test_compiled_forward_and_backward_equal_torch_and_are_one_op_each(device: torch.device, sample: Sample) -> None:
    forward, backward = GraphRecorder(), GraphRecorder()
    check_compiled(sample, device, dynamic=True, backend=aot_autograd(fw_compiler=forward, bw_compiler=backward))
    assert forward.graphs == [[f"tridal.{sample.op.name}.default"]]
    assert backward.graphs == [[f"tridal.{sample.op.name}_backward.default"]]


@pytest.mark.parametrize(
    "name",
    [MASKED, pytest.param("cross_entropy", marks=pytest.mark.nightly("the same sample with aot_eager, and MASKED"))],
)
def test_inductor_equals_torch(device: torch.device, name: str) -> None:
    check_compiled(SAMPLES[name], device)


@EACH
def test_devices_without_a_backend_compile_to_torch_ops(sample: Sample) -> None:
    """Those of losses contain the registered op, which torch computes."""
    recorder = GraphRecorder()
    compiled = torch.compile(lambda tensors: sample.function(**tensors), fullgraph=True, dynamic=True, backend=recorder)
    tensors = {name: tensor.detach() for name, tensor in tensors_of(sample, 6).items()}
    with tridal.use(device="auto"):
        assert_close(compiled(tensors), sample.expected(**tensors))
    assert recorder.graphs == [[] if sample.op.dim is None else [f"tridal.{sample.op.name}.default"]]


def test_compiled_op_selects_the_backend_at_each_call(backend: Any, device: torch.device) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x), fullgraph=True, backend="eager")
    x = torch.randn(6, 5, device=device)
    expected = torch.softmax(x, -1)
    with tridal.record_calls() as calls:
        assert_close(compiled(x), expected)
        with tridal.use(device="auto"):
            assert_close(compiled(x), expected)
    assert [call.backend for call in calls] == [backend.name, "torch" if device.type == "cpu" else backend.name]


@EACH
def test_exported_program_has_the_op_and_its_gradient(device: torch.device, sample: Sample, tmp_path: Path) -> None:
    """The number of rows is dynamic."""

    class Model(torch.nn.Module):
        def forward(self, tensors: dict[str, torch.Tensor]) -> Any:
            return sample.function(**tensors)

    given = {name: tensor.detach() for name, tensor in tensors_of(sample, 6, device).items()}
    roles = {"input": "element", **sample.roles}
    rows = {name: sample.dim == 0 for name, role in roles.items() if role in ("element", "constant")}
    rows |= {"target": False, "ids": False}
    shapes = {name: {int(rows[name]): torch.export.Dim.DYNAMIC} if name in rows else None for name in given}
    program = torch.export.export(Model(), (given,), dynamic_shapes=(shapes,), strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert [node for node in loaded.graph.nodes if str(node.target) == f"tridal.{sample.op.name}.default"]
    for count in (6, 11):
        tensors = tensors_of(sample, count, device)
        results = loaded.module()(tensors)
        assert_close(results, sample.expected(**tensors))
        assert_close(gradients(lambda r=results, **_: r, tensors), gradients(sample.expected, tensors))


class Block(torch.nn.Module):
    """A module to export. It has both ops, because the compilation takes long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tridal.log_softmax(tridal.softmax(x * 2, -1) * 2, -1)  # type: ignore[no-any-return]


@pytest.mark.nightly(
    "test_exported_program_has_the_op_and_its_gradient exports the same op; AOTInductor compiles torch's part"
)
@aot_inductor
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_aot_inductor_package_equals_torch(device: torch.device, tmp_path: Path) -> None:
    x = torch.randn(6, 5, device=device)
    program = torch.export.export(Block(), (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for count in (6, 11):
        x = torch.randn(count, 5, device=device)
        assert_close(loaded(x), torch.log_softmax(torch.softmax(x * 2, -1) * 2, -1))
