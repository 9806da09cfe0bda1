"""torch.compile and torch.export: one graph with one op, forward and backward, and one compilation for all batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.testing import assert_close

import tridal
from torch_versions import aot_inductor, compiled_error

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(params=["softmax", "log_softmax"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class GraphRecorder:
    """A compiler backend that records the ops of each graph."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True, None])
def test_compiled_forward_and_backward_equal_torch(
    device: torch.device, name: str, compiler: str, dynamic: bool | None
) -> None:
    def block(softmax: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return softmax(x * 2 @ w, -1).square() + softmax(x.float(), 0, torch.float64).cos().sum(0)[:3]

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=compiler)
    for rows in (6, 9):
        x = torch.randn(rows, 5, dtype=torch.float64, device=device, requires_grad=True)
        w = torch.randn(5, 3, dtype=torch.float64, device=device, requires_grad=True)
        ours = compiled(getattr(tridal, name), x, w)
        theirs = block(getattr(torch, name), x, w)
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        grads = torch.autograd.grad(ours.sin().sum(), (x, w))
        assert_close(grads, torch.autograd.grad(theirs.sin().sum(), (x, w)), rtol=1e-5, atol=1e-5)


def test_one_graph_with_one_op_for_all_batch_sizes(device: torch.device, name: str) -> None:
    recorder = GraphRecorder()
    compiled = torch.compile(lambda x: getattr(tridal, name)(x), fullgraph=True, dynamic=True, backend=recorder)
    for rows in (6, 9, 2, 64, 1000):
        x = torch.randn(rows, 5, device=device)
        assert_close(compiled(x), getattr(torch, name)(x, -1))
    assert recorder.graphs == [[f"tridal.{name}.default"]]


def test_automatic_dynamic_shapes_recompile_once(device: torch.device, name: str) -> None:
    recorder = GraphRecorder()
    compiled = torch.compile(lambda x: getattr(tridal, name)(x), fullgraph=True, backend=recorder)
    for rows in (6, 9, 2, 64, 1000):
        compiled(torch.randn(rows, 5, device=device))
    # The first graph is dynamic already if another test in this process made dynamo assume dynamic shapes.
    assert 1 <= len(recorder.graphs) <= 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_devices_without_a_backend_compile_to_torch_ops(name: str, dynamic: bool) -> None:
    recorder = GraphRecorder()
    compiled = torch.compile(lambda x: getattr(tridal, name)(x), fullgraph=True, dynamic=dynamic, backend=recorder)
    x = torch.randn(6, 5)
    assert_close(compiled(x), getattr(torch, name)(x, -1))
    assert len(recorder.graphs) == 1
    assert "tridal" not in str(recorder.graphs)


def test_compiled_op_selects_the_backend_at_each_call(backend: Any, device: torch.device) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x), fullgraph=True, backend="eager")
    x = torch.randn(6, 5, device=device)
    expected = torch.softmax(x, -1)
    with tridal.record_calls() as calls:
        assert_close(compiled(x), expected)
        with tridal.use(device="auto"):
            assert_close(compiled(x), expected)
    assert [call.backend for call in calls] == [backend.name, "torch" if device.type == "cpu" else backend.name]


def test_compiled_autocast_gives_the_dtype_of_torch(device: torch.device) -> None:
    def block(softmax: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return softmax(x @ x.t(), -1)

    x = torch.randn(6, 5, device=device)
    ours = torch.compile(block, fullgraph=True, backend="aot_eager")(tridal.softmax, x)
    theirs = block(torch.softmax, x)
    assert ours.dtype == theirs.dtype
    assert_close(ours.float(), theirs.float(), rtol=2**-7, atol=2**-7)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": vmap,
    "grad": lambda f: grad(lambda z: f(z).square().sum()),
    "vmap of grad": lambda f: vmap(grad(lambda z: f(z).square().sum())),
    "jvp": lambda f: lambda z: jvp(f, (z,), (z.flip(0),))[1],
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda z: f(z).square().sum()),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_compiled_transforms_equal_torch(device: torch.device, name: str, transform: Callable[[Any], Any]) -> None:
    x = torch.randn(3, 5, device=device)
    ours = torch.compile(transform(lambda z: getattr(tridal, name)(z, -1)), fullgraph=True, backend="aot_eager")(x)
    assert_close(ours, transform(lambda z: getattr(torch, name)(z, -1))(x))


def test_compiled_double_backward_raises_the_error_of_torch(device: torch.device) -> None:
    x = torch.randn(3, 5, device=device, requires_grad=True)
    compiled = torch.compile(lambda z: tridal.softmax(z).square().sum(), fullgraph=True, backend="aot_eager")
    # The message depends on the version of torch, and on whether its fake tensors happen to share memory.
    with pytest.raises(RuntimeError, match=r"double backward|does not require grad|donated buffers"):
        torch.autograd.grad(compiled(x), x, create_graph=True)[0].sum().backward()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((2,), "dim|Dimension"), ((-1, torch.int64), "dtype|not implemented|floating")],
    ids=["dim", "dtype"],
)
def test_compiled_invalid_arguments_raise(device: torch.device, arguments: tuple[Any, ...], message: str) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x, *arguments), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=message):
        compiled(torch.randn(3, 5, device=device))


def test_compiled_stream_argument_raises(device: torch.device) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x, stream=0), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=compiled_error("no meaning in a compiled function")):
        compiled(torch.randn(3, 5, device=device))


def attention(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tridal.softmax(x * 2, scale=0.5, mask=mask, causal=True, masked_rows="zero")


def test_masked_softmax_is_one_op_for_all_batch_sizes(device: torch.device) -> None:
    recorder = GraphRecorder()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=recorder)
    for batch in (6, 9, 2, 64):
        x, mask = torch.randn(batch, 3, 4, 5, device=device), torch.rand(batch, 1, 4, 5, device=device) > 0.3
        assert_close(compiled(x, mask), attention(x, mask), rtol=0, atol=0)
    assert [[name for name in graph if "built-in" not in name] for graph in recorder.graphs] == [
        ["tridal.softmax.default"]
    ]


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_compiled_masks_forward_and_backward_equal_eager(
    device: torch.device, compiler: str, kind: torch.dtype
) -> None:
    compiled = torch.compile(attention, fullgraph=True, backend=compiler)
    for batch in (6, 9):
        x = torch.randn(batch, 4, 5, device=device, requires_grad=True)
        mask = (torch.rand(4, 5, device=device) > 0.3).to(kind)
        ours, theirs = compiled(x, mask), attention(x, mask)
        assert_close(ours, theirs)
        assert_close(torch.autograd.grad(ours.sin().sum(), x), torch.autograd.grad(theirs.sin().sum(), x))


def test_gradient_of_masked_softmax_is_one_op(device: torch.device) -> None:
    from torch._dynamo.backends.common import aot_autograd

    backward = GraphRecorder()
    compiled = torch.compile(
        lambda x: tridal.softmax(x, scale=0.5, causal=True),
        fullgraph=True,
        backend=aot_autograd(fw_compiler=GraphRecorder(), bw_compiler=backward),
    )
    x = torch.randn(4, 5, device=device, requires_grad=True)
    compiled(x).backward(torch.randn(4, 5, device=device))
    assert [name for name in backward.graphs[0] if "detach" not in name] == ["tridal.softmax_backward.default"]


def test_compiled_gradient_of_the_mask(device: torch.device) -> None:
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 4, 5, device=device, requires_grad=True)
    mask = torch.randn(4, 5, device=device, requires_grad=True)
    ours, theirs = compiled(x, mask), attention(x, mask)
    assert_close(ours, theirs)
    for got, wanted in zip(*(torch.autograd.grad(y.sin().sum(), (x, mask)) for y in (ours, theirs)), strict=True):
        assert_close(got, wanted)


@pytest.mark.parametrize("transform", [vmap, lambda f: grad(lambda z: f(z).square().sum()), jacfwd])
def test_compiled_transforms_of_masked_softmax_equal_eager(
    device: torch.device, transform: Callable[[Any], Any]
) -> None:
    x, mask = torch.randn(3, 4, 5, device=device), torch.rand(4, 5, device=device) > 0.3
    ours = torch.compile(transform(lambda z: attention(z, mask)), fullgraph=True, backend="aot_eager")(x)
    assert_close(ours, transform(lambda z: attention(z, mask))(x))


def test_masks_compile_to_torch_ops_on_devices_without_a_backend() -> None:
    recorder = GraphRecorder()
    x, mask = torch.randn(3, 4, 5), torch.rand(4, 5) > 0.3
    compiled = torch.compile(attention, fullgraph=True, backend=recorder)
    assert_close(compiled(x, mask), attention(x, mask))
    assert len(recorder.graphs) == 1
    assert "tridal" not in str(recorder.graphs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": torch.ones(3)}, "cannot be broadcast"),
        ({"scale": 0.5, "stream": 0}, "no meaning in a compiled function"),
    ],
    ids=["mask", "stream"],
)
def test_compiled_invalid_masks_and_streams_raise(
    device: torch.device, arguments: dict[str, Any], message: str
) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x, **arguments), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=compiled_error(message)):
        compiled(torch.randn(3, 5, device=device))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_masked_softmax_is_one_op(device: torch.device, strict: bool, tmp_path: Path) -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return attention(x, mask)

    batch = torch.export.Dim.DYNAMIC
    inputs = torch.randn(6, 4, 5, device=device), torch.rand(6, 1, 5, device=device) > 0.3
    program = torch.export.export(Attention(), inputs, dynamic_shapes=({0: batch}, {0: batch}), strict=strict)
    torch.export.save(program, tmp_path / "attention.pt2")
    loaded = torch.export.load(tmp_path / "attention.pt2")
    assert "tridal.softmax.default" in [str(node.target) for node in loaded.graph.nodes]
    for count in (6, 11):
        x, mask = torch.randn(count, 4, 5, device=device), torch.rand(count, 1, 5, device=device) > 0.3
        assert_close(loaded.module()(x, mask), attention(x, mask))


class Block(torch.nn.Module):
    """A module to export."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.op = getattr(tridal, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x * 2, -1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_has_the_op_and_its_gradient(
    device: torch.device, name: str, strict: bool, tmp_path: Path
) -> None:
    x = torch.randn(6, 5, device=device)
    program = torch.export.export(Block(name), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=strict)
    torch.export.save(program, tmp_path / "block.pt2")
    loaded = torch.export.load(tmp_path / "block.pt2")
    assert f"tridal.{name}.default" in [str(node.target) for node in loaded.graph.nodes]
    for rows in (6, 11):
        x = torch.randn(rows, 5, device=device, requires_grad=True)
        ours, theirs = loaded.module()(x), getattr(torch, name)(x * 2, -1)
        assert_close(ours, theirs)
        (g,) = torch.autograd.grad(ours.sin().sum(), x)
        assert_close(g, torch.autograd.grad(theirs.sin().sum(), x)[0])


@aot_inductor
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_aot_inductor_package_equals_torch(device: torch.device, tmp_path: Path) -> None:
    x = torch.randn(6, 5, device=device)
    rows = torch.export.Dim("rows", min=2, max=64)
    both_ops = torch.nn.Sequential(Block("softmax"), Block("log_softmax"))  # the compilation takes long
    program = torch.export.export(both_ops, (x,), dynamic_shapes=({0: rows},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for count in (6, 11):
        x = torch.randn(count, 5, device=device)
        assert_close(loaded(x), torch.log_softmax(torch.softmax(x * 2, -1) * 2, -1))
