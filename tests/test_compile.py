"""The op under torch.compile and torch.export: one graph, forward and backward, and one compilation for all batches."""

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

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _forget_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(params=["softmax", "log_softmax"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Counter:
    """A compiler that counts its graphs and says which ops they hold."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True, None])
def test_forward_and_backward(device: torch.device, name: str, compiler: str, dynamic: bool | None) -> None:
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


def test_one_op_and_no_recompilation_for_another_batch(device: torch.device, name: str) -> None:
    counter = Counter()
    compiled = torch.compile(lambda x: getattr(tridal, name)(x), fullgraph=True, dynamic=True, backend=counter)
    for rows in (6, 9, 2, 64, 1000):
        x = torch.randn(rows, 5, device=device)
        assert_close(compiled(x), getattr(torch, name)(x, -1))
    assert counter.graphs == [[f"tridal.{name}.default"]]


def test_at_most_one_recompilation_where_nobody_announced_batches(device: torch.device, name: str) -> None:
    counter = Counter()
    compiled = torch.compile(lambda x: getattr(tridal, name)(x), fullgraph=True, backend=counter)
    for rows in (6, 9, 2, 64, 1000):
        compiled(torch.randn(rows, 5, device=device))
    assert len(counter.graphs) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_devices_without_a_backend_compile_to_torch_itself(name: str, dynamic: bool) -> None:
    counter = Counter()
    compiled = torch.compile(lambda x: getattr(tridal, name)(x), fullgraph=True, dynamic=dynamic, backend=counter)
    x = torch.randn(6, 5)
    assert_close(compiled(x), getattr(torch, name)(x, -1))
    assert len(counter.graphs) == 1
    assert "tridal" not in str(counter.graphs)


def test_who_serves_is_asked_at_each_call(device: torch.device) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x), fullgraph=True, backend="eager")
    x = torch.randn(6, 5, device=device)
    expected = torch.softmax(x, -1)
    assert_close(compiled(x), expected)
    with tridal.use(device="auto"):
        assert_close(compiled(x), expected)


def test_autocast(device: torch.device) -> None:
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
def test_compiled_transforms(device: torch.device, name: str, transform: Callable[[Any], Any]) -> None:
    x = torch.randn(3, 5, device=device)
    ours = torch.compile(transform(lambda z: getattr(tridal, name)(z, -1)), fullgraph=True, backend="aot_eager")(x)
    assert_close(ours, transform(lambda z: getattr(torch, name)(z, -1))(x))


def test_compiled_double_backward_is_torchs_clear_error(device: torch.device) -> None:
    x = torch.randn(3, 5, device=device, requires_grad=True)
    compiled = torch.compile(lambda z: tridal.softmax(z).square().sum(), fullgraph=True, backend="aot_eager")
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):  # since torch 2.12, and before
        first.sum().backward()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((2,), "dim|Dimension"), ((-1, torch.int64), "dtype|not implemented|floating")],
    ids=["dim", "dtype"],
)
def test_bad_arguments_are_named(device: torch.device, arguments: tuple[Any, ...], message: str) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x, *arguments), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=message):
        compiled(torch.randn(3, 5, device=device))


def test_streams_are_refused(device: torch.device) -> None:
    compiled = torch.compile(lambda x: tridal.softmax(x, stream=0), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="no meaning in a compiled function"):
        compiled(torch.randn(3, 5, device=device))


class Block(torch.nn.Module):
    """Something to export."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.op = getattr(tridal, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x * 2, -1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("strict", [False, True])
def test_export(device: torch.device, name: str, strict: bool, tmp_path: Path) -> None:
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


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_aot_inductor(device: torch.device, name: str, tmp_path: Path) -> None:
    x = torch.randn(6, 5, device=device)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(Block(name), (x,), dynamic_shapes=({0: rows},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for count in (6, 11):
        x = torch.randn(count, 5, device=device)
        assert_close(loaded(x), getattr(torch, name)(x * 2, -1))
