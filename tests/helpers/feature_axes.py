"""The features of which `test_combinations.py` tests all pairs: one table per axis, from a name to a small function."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tridal
from feature_derivatives import Derivative, Function
from op_samples import SAMPLES
from tridal.devices.settings import current, restored
from tridal.ops import table
from tridal.ops.row_math import reference_of

SHAPE = (3, 4, 6)


SEVERAL_TENSORS = {
    name: sample for name, sample in SAMPLES.items() if not (sample.op.one_tensor or name.endswith("a weight"))
}
"""The samples of ops that `ARGUMENTS` does not fit."""


class Subclass(torch.Tensor):
    """A subclass without rules of its own."""


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def sharded(placement: Any) -> Function:
    return lambda x: distribute_tensor(x.clone(), init_device_mesh(x.device.type, (1,)), [placement])


def nested(layout: torch.layout) -> Function:
    return lambda x: torch.nested.nested_tensor(list(x.unbind()), layout=layout)


INPUTS: dict[str, Function] = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "sliced": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:1].clone().expand(x.shape),
    "negative": lambda x: torch._neg_view(-x),
    "float16": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "float64": lambda x: x.double(),
    "integers": lambda x: x.round().int(),
    "subclass": lambda x: x.clone().as_subclass(Subclass),
    "parameter": lambda x: torch.nn.Parameter(x.clone()),
    "replicated": sharded(Replicate()),
    "sharded batch": sharded(Shard(0)),
    "sharded rows": sharded(Shard(-1)),
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
}

MASK = torch.arange(math.prod(SHAPE)).view(SHAPE) % 5 > 0
ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dim 1": {"dim": 1},
    "float16 result": {"dtype": torch.float16},
    "float32 result": {"dtype": torch.float32},
    "float64 result": {"dtype": torch.float64},
    "scale": {"scale": 0.5},
    "boolean mask": {"mask": MASK},
    "float mask": {"mask": torch.linspace(-1, 1, 6)},
    "causal": {"causal": True},
    "zero rows": {"mask": MASK & (torch.arange(4) != 1)[:, None], "masked_rows": "zero"},
    "all at once": {"mask": MASK, "masked_rows": "zero", "causal": True, "scale": 2.0, "dtype": torch.float32},
}
NEED_SCALE_MASK = {name for name, arguments in ARGUMENTS.items() if arguments.keys() - {"dim", "dtype"}}


class Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def compiled(**options: Any) -> Callable[..., torch.Tensor]:
    """The function is compiled, and its derivatives are computed outside."""
    return lambda f, derivative, x: derivative(torch.compile(f, **options), x)


def compiled_whole(**options: Any) -> Callable[..., torch.Tensor]:
    """The function and its derivatives are compiled together."""
    return lambda f, derivative, x: torch.compile(lambda z: derivative(f, z), **options)(x)


def compiled_autograd_graph(f: Function, derivative: Derivative, x: torch.Tensor) -> torch.Tensor:
    with compiled_autograd._enable(torch.compile(backend="eager")):
        return derivative(f, x)


def exported(f: Function, derivative: Derivative, x: torch.Tensor) -> torch.Tensor:
    return derivative(torch.export.export(Module(f), (x,)).module(), x)


def overridden(f: Function, derivative: Derivative, x: torch.Tensor) -> torch.Tensor:
    with tridal.override_torch():
        return derivative(f, x)


CALLS: dict[str, Callable[[Function, Derivative, torch.Tensor], torch.Tensor]] = {
    "eager": lambda f, derivative, x: derivative(f, x),
    "repeated": lambda f, derivative, x: [derivative(f, x) for _ in range(4)][-1],
    "override_torch": overridden,
    "compiled": compiled(backend="eager", fullgraph=True),
    "compiled dynamic": compiled(backend="aot_eager", fullgraph=True, dynamic=True),
    "compiled whole": compiled_whole(backend="aot_eager"),
    "compiled autograd": compiled_autograd_graph,
    "exported": exported,
    "traced": lambda f, derivative, x: derivative(torch.jit.trace(f, (x.detach(),), check_trace=False), x),
}
SLOW_CALLS = {*(name for name in CALLS if name.startswith("compiled")), "exported", "traced"}

Compute = Callable[[], torch.Tensor]


def inside(*contexts: Callable[[], AbstractContextManager[Any]]) -> Callable[[Compute, torch.device], torch.Tensor]:
    def run(compute: Compute, device: torch.device) -> torch.Tensor:
        outer, inner = (*contexts, nullcontext)[:2]
        with outer(), inner():
            return compute()

    return run


def autocast(compute: Compute, device: torch.device) -> torch.Tensor:
    with torch.autocast(device.type, torch.bfloat16):
        return compute()


def in_threads(number: int) -> Callable[[Compute, torch.device], torch.Tensor]:
    """Each thread gets a stream of its own, on devices with streams, and the same result."""

    def run(compute: Compute, device: torch.device) -> torch.Tensor:
        settings, results = current(), list[Any]()

        def work() -> None:
            try:
                with restored(settings):
                    results.append((compute if device.type == "cpu" else lambda: on_side_stream(compute, device))())
            except BaseException as error:
                results.append(error)

        threads = [threading.Thread(target=work) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for error in results:
            if isinstance(error, BaseException):
                raise error
        assert len(results) == number
        return results[-1]  # type: ignore[no-any-return]

    return run


CONTEXTS: dict[str, Callable[[Compute, torch.device], torch.Tensor]] = {
    "plain context": inside(nullcontext),
    "no_grad": inside(torch.no_grad),
    "inference": inside(torch.inference_mode),
    "enable_grad in inference": inside(torch.inference_mode, torch.enable_grad),
    "autocast": autocast,
    "batch invariant": inside(lambda: tridal.use(batch_invariant=True)),
    "settings of torch": inside(lambda: tridal.use(device="auto")),
    "torch function mode": inside(FunctionMode),
    "torch dispatch mode": inside(DispatchMode),
    "thread": in_threads(1),
}


def on_side_stream(compute: Compute, device: torch.device) -> torch.Tensor:
    """The stream waits for the current stream, and the current stream waits for an event of it."""
    module = torch.get_device_module(device.type)
    outer, stream = module.current_stream(device), module.Stream(device)
    stream.wait_stream(outer)
    with module.stream(stream):
        result = compute()
        event = stream.record_event()
    outer.wait_event(event)
    result.record_stream(outer)
    return result


def in_graph(compute: Compute, device: torch.device) -> torch.Tensor:
    """Captured by a graph and replayed twice."""
    module = torch.get_device_module(device.type)
    for _ in range(2):
        on_side_stream(compute, device)
    graph = module.CUDAGraph()
    with module.graph(graph):
        result = compute()
    for _ in range(2):
        graph.replay()
    return result.clone()


ACCELERATOR_CONTEXTS: dict[str, Callable[[Compute, torch.device], torch.Tensor]] = {
    "side stream": on_side_stream,
    "threads with streams": in_threads(4),
    "graph": in_graph,
}


def like(value: Any, x: torch.Tensor) -> Any:
    """Returns an argument for an input: tensors are moved to its device, and to its mesh."""
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.to(x.device)
    return distribute_tensor(moved, x.device_mesh, [Replicate()]) if isinstance(x, DTensor) else moved


def ours(name: str, keywords: dict[str, Any]) -> Function:
    if name in SEVERAL_TENSORS:
        return SEVERAL_TENSORS[name].ours
    function = tridal.row_function(table.op_named(name))
    return lambda x: function(x, **keywords)


def by_torch(name: str, keywords: dict[str, Any], wide: bool = False) -> Function:
    """The op by torch's functions. With `wide`, in float64 after the cast to `dtype`."""
    if name in SEVERAL_TENSORS:
        theirs = SEVERAL_TENSORS[name].theirs
        return lambda x: theirs(x.double() if wide else x)
    op = table.op_named(name)
    dim, scale, mask = keywords.get("dim", -1), keywords.get("scale", 1.0), keywords.get("mask")
    modified = bool(keywords.keys() - {"dim", "dtype"})

    def compute(x: torch.Tensor) -> torch.Tensor:
        dtype = keywords.get("dtype", x.dtype)
        if not dtype.is_floating_point:
            raise NotImplementedError(f"{op.name} of {dtype}, as torch.softmax raises")
        if not (modified or wide or op.torch_function is None):
            return op.torch_function(x, dim, dtype=keywords.get("dtype"))
        x = x.to(dtype)
        x = x.to(torch.float64 if wide else torch.promote_types(dtype, torch.float32)) * scale
        if mask is not None:
            x = x.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else x + mask
        if keywords.get("causal"):
            x = x.masked_fill(~like(torch.ones(SHAPE[-2:], dtype=torch.bool).tril(), x), -torch.inf)
        empty = (x == -torch.inf).all(dim, keepdim=True) if "masked_rows" in keywords else None
        x = x if empty is None else x.masked_fill(empty, 0.0)
        y = reference_of(op, x, dim, tuple(op.parameters.values()))
        y = y if empty is None else y.masked_fill(empty, 0.0)
        return y if wide else y.to(dtype)

    return compute


def plain(x: torch.Tensor) -> torch.Tensor:
    """Returns the values as a plain float64 tensor. One rank holds all values of a DTensor."""
    if isinstance(x, DTensor):
        x = x._local_tensor
    elif x.layout is torch.jagged:
        x = x._values.view(SHAPE)  # also works for an inference tensor
    elif x.is_nested:
        x = torch.stack(x.unbind())
    return x.detach().double().as_subclass(torch.Tensor).clone()
