"""Removes private items of PyTorch and checks tridal's results: `private_fallbacks.py ITEM[,ITEM...]...`.

Each argument gets a child process. It is forked before tridal is imported, and after slow imports. PyTorch uses the
items itself, so the child restores them when `tridal.pytorch.torch.private` has looked them up. Prints the failures as
JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._functorch.utils
import torch.distributed.tensor
import triton.language
import triton.runtime.interpreter
from torch.autograd import gradcheck, gradgradcheck
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from torch_versions import ABSENT

assert triton.runtime.interpreter
# These import much on first use.
torch.compile(torch.sin, backend="eager", fullgraph=True)(torch.ones(2))
torch.jit.trace(torch.sin, (torch.ones(2),))
torch.func.jvp(torch.sin, (torch.ones(2),), (torch.ones(2),))
torch.compiler.reset()


def check_items(items: list[str]) -> None:
    """Imports tridal without these items, and checks all features."""
    owners = [(pkgutil.resolve_name(item.rpartition(".")[0]), item.rpartition(".")[2]) for item in items]
    values = [vars(owner)[name] for owner, name in owners]
    for owner, name in owners:
        delattr(owner, name)
    private = import_private()
    for (owner, name), value in zip(owners, values, strict=True):
        setattr(owner, name, value)
    assert {*items, *ABSENT} == {*private.MISSING}, private.MISSING
    import tridal

    assert sys.modules[private.__name__] is private, "tridal uses the module that was loaded here"
    with tridal.use(device="interpreter"):
        for check in CHECKS:
            check(tridal)


def import_private() -> Any:
    """Loads `tridal.pytorch.torch.private`, which needs torch only, and not the rest of tridal."""
    package = importlib.util.find_spec("tridal")
    assert package is not None
    file = Path(str(package.origin)).parent / "pytorch" / "torch" / "private.py"
    spec = importlib.util.spec_from_file_location("tridal.pytorch.torch.private", file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results(tridal: Any) -> None:
    for name in ("log_softmax", *["softmax"] * 3):  # the later calls are known
        x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        ours, theirs = getattr(tridal, name)(x), getattr(torch, name)(x, -1)
        assert_close(ours, theirs)
        g = torch.randn_like(ours)
        assert_close(torch.autograd.grad(ours, x, g), torch.autograd.grad(theirs, x, g))
    x = torch.randn(3, 5, requires_grad=True)
    expected = torch.softmax((0.5 * x).masked_fill(torch.ones(3, 5).tril() == 0, -torch.inf), -1)
    assert_close(tridal.softmax(x, scale=0.5, causal=True), expected)
    with torch.autocast("cpu", torch.bfloat16):
        half = torch.randn(3, 5).bfloat16()
        assert tridal.softmax(half).dtype is torch.softmax(half, -1).dtype


def derivatives_and_transforms(tridal: Any) -> None:
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    options = {"fast_mode": True, "check_batched_grad": True}
    assert gradcheck(tridal.softmax, x, check_forward_ad=True, check_batched_forward_grad=True, **options)
    assert gradgradcheck(tridal.softmax, x, **options)
    x = x.detach()
    assert_close(torch.vmap(tridal.softmax)(x), torch.softmax(x, -1))
    assert_close(
        *(torch.func.jvp(lambda z, f=f: f(z, -1), (x,), (x.flip(0),)) for f in (tridal.softmax, torch.softmax))
    )
    squares = (lambda z, f=f: f(z, -1).square().sum() for f in (tridal.softmax, torch.softmax))
    assert_close(*(torch.func.vmap(torch.func.grad(f))(x) for f in squares))


def dispatch_modes(tridal: Any) -> None:
    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops.append(str(func))
            return func(*args, **(kwargs or {}))

    ops: list[str] = []
    x = torch.randn(3, 5)
    with Record():
        y = tridal.softmax(x)
    if sys.modules["tridal.pytorch.torch.private"].HAS_NODES:  # the fallback consists of torch's ops
        assert "tridal.softmax.default" in ops
    assert_close(y, torch.softmax(x, -1))
    with torch.device("meta"):  # a mode with __torch_function__
        assert_close(tridal.softmax(x), y)


def compiled(tridal: Any) -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y = torch.compile(lambda z: tridal.softmax(z * 2), backend="eager", fullgraph=True)(x)
    expected = torch.softmax(x * 2, -1)
    assert_close(y, expected)
    assert_close(torch.autograd.grad(y.sin().sum(), x), torch.autograd.grad(expected.sin().sum(), x))
    traced = torch.jit.trace(lambda z: tridal.softmax(z), (x.detach(),), check_trace=False)
    assert_close(traced(x.detach()), torch.softmax(x, -1).detach())


def override(tridal: Any) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    before = torch._C._dispatch_dump("aten::_softmax")
    expected = torch.softmax(x, -1)
    with tridal.override_torch():
        assert torch._C._dispatch_dump("aten::_softmax") != before
        y = torch.softmax(x, -1)
        assert_close(y, expected)
        assert_close(*(torch.autograd.grad(z.sin().sum(), x) for z in (y, expected)))
    assert torch._C._dispatch_dump("aten::_softmax") == before


def sharded(tridal: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        x = torch.randn(3, 5)
        y = tridal.softmax(distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(1)]))
        assert_close(y.to_local(), torch.softmax(x, -1))
        torch.distributed.destroy_process_group()


def doctor(tridal: Any) -> None:
    from tridal.cli.doctor import examine

    report = examine()
    assert report["device"]["usable"], report["device"]
    assert not report["problems"], report["problems"]


CHECKS: tuple[Callable[[Any], None], ...] = (
    results, derivatives_and_transforms, dispatch_modes, compiled, override, sharded, doctor,
)  # fmt: skip


def run_child(items: str) -> str | None:
    """Returns the failure without these items; None if all checks pass."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        report = ""
        try:
            torch.manual_seed(0)
            check_items(items.split(","))
        except BaseException:
            report = traceback.format_exc()
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            pipe.write(report)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        report = pipe.read()
    _, status = os.waitpid(child, 0)
    return report or (None if status == 0 else f"the process ended with status {status}")


if __name__ == "__main__":
    # torch 2.9's gloo writes to stdout as well, so the result is a line of its own.
    print("\n" + json.dumps({items: run_child(items) for items in sys.argv[1:]}))
