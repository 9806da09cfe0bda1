"""Pairs of features: each feature of one group with each feature of the other groups gives torch's result."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy
import pytest
import torch
from torch.func import grad, jvp, vmap

import tridal
from tridal.devices.settings import current, restored
from tridal.devices.types import Backend
from tridal.errors import LayoutError
from tridal.pytorch.device_context import device_context
from tridal.pytorch.op_call import OpCall

Function = Callable[[torch.Tensor], torch.Tensor]
SHAPE = (3, 4, 6)


class Subclass(torch.Tensor):
    """A subclass without rules of its own."""


INPUTS: dict[str, Function] = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "sliced": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:1].clone().expand(x.shape),
    "negative": lambda x: torch._neg_view(-x),
    "subclass": lambda x: x.clone().as_subclass(Subclass),
    "parameter": lambda x: torch.nn.Parameter(x.clone()),
}
MASK = torch.arange(math.prod(SHAPE)).view(SHAPE) % 5 > 0
ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.5},
    "boolean mask": {"mask": MASK},
    "float mask": {"mask": torch.linspace(-1, 1, 6)},
    "causal": {"causal": True},
    "zero rows": {"mask": MASK & (torch.arange(4) != 1)[:, None], "masked_rows": "zero"},
    "narrower dtype": {"dtype": torch.float16},
    "wider dtype": {"dtype": torch.float64},
    "dim 1": {"dim": 1},
}


def expected(x: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
    """The result by torch's ops, in float64."""
    scores = x.double() * arguments.get("scale", 1.0)
    mask = arguments.get("mask")
    if mask is not None:
        mask = mask.to(x.device)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if arguments.get("causal"):
        scores = scores.masked_fill(~torch.ones(SHAPE[-2:], dtype=torch.bool, device=x.device).tril(), -torch.inf)
    dim = arguments.get("dim", -1)
    empty = (scores == -torch.inf).all(dim, keepdim=True) if arguments.get("masked_rows") == "zero" else scores.isnan()
    return torch.softmax(scores.masked_fill(empty, 0.0), dim).masked_fill(empty, 0.0)


def squared(function: Function) -> Function:
    return lambda x: function(x).double().square().sum()


def gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of squares, by autograd."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(squared(function)(x), x)
    return dx


def second_gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(squared(function)(x), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.double().square().sum(), x)
    return ddx


def backward_inside_compiled(function: Function, x: torch.Tensor) -> torch.Tensor:
    """The loss is computed outside of the compiled function that calls backward."""
    x = x.detach().requires_grad_()
    loss = squared(function)(x)
    torch.compile(lambda value: value.backward(), backend="eager")(loss)
    assert x.grad is not None
    return x.grad


def in_thread(function: Function, x: torch.Tensor) -> torch.Tensor:
    results: list[torch.Tensor] = []
    settings = current()

    def run() -> None:
        with restored(settings):
            results.append(function(x))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return results[0]


def inside(context: Callable[[], Any], then: Callable[[], Any] = nullcontext) -> Callable[..., torch.Tensor]:
    def call(function: Function, x: torch.Tensor) -> torch.Tensor:
        with context(), then():
            return function(x).clone()

    return call


def compiled(**options: Any) -> Callable[..., torch.Tensor]:
    def call(function: Function, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", **options)(x)  # type: ignore[no-any-return]

    return call


CALLS: dict[str, Callable[[Function, torch.Tensor], torch.Tensor]] = {
    "eager": lambda f, x: f(x),
    "repeated": lambda f, x: [f(x) for _ in range(4)][-1],
    "no_grad": inside(torch.no_grad),
    "inference": inside(torch.inference_mode),
    "enable_grad in inference": inside(torch.inference_mode, torch.enable_grad),
    "batch invariant": inside(lambda: tridal.use(batch_invariant=True)),
    "thread": in_thread,
    "compiled": compiled(fullgraph=True),
    "compiled dynamic": compiled(fullgraph=True, dynamic=True),
    "compiled gradient": lambda f, x: gradient(compiled(fullgraph=True).__get__(f), x),
    "gradient": gradient,
    "gradient after gradient": lambda f, x: [gradient(f, x) for _ in range(4)][-1],
    "backward in compiled": backward_inside_compiled,
    "second gradient": second_gradient,
    "functional gradient": lambda f, x: grad(squared(f))(x),
    "compiled functional gradient": lambda f, x: compiled()(grad(squared(f)), x),
    "forward mode": lambda f, x: jvp(lambda z: f(z).double(), (x,), (torch.ones_like(x).cumsum(-1),))[1],
    "vmap": lambda f, x: vmap(f)(x.unsqueeze(0)).squeeze(0),
    "compiled vmap": lambda f, x: compiled()(vmap(f), x.unsqueeze(0)).squeeze(0),
}
REFUSED = {(call, "subclass") for call in CALLS if call.startswith("compiled")} | {("forward mode", "expanded")}
"""Pairs for which torch's own softmax raises an error."""

PAIRS = [
    *((call, view, "plain") for call, view in itertools.product(CALLS, INPUTS) if (call, view) not in REFUSED),
    *itertools.product(CALLS, ["contiguous"], ARGUMENTS),
    *itertools.product(["eager", "gradient"], INPUTS, ARGUMENTS),
]


@pytest.mark.parametrize("pair", sorted(set(PAIRS)), ids=", ".join)
def test_pair_of_features_gives_the_result_of_torch(
    backend: Backend, device: torch.device, pair: tuple[str, str, str]
) -> None:
    call, view, arguments = pair
    values = torch.linspace(-3, 3, math.prod(SHAPE)).view(SHAPE).sin().to(device) * 2
    values = values[:1].expand(SHAPE) if view == "expanded" else values
    x = INPUTS[view](values)
    keywords = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in ARGUMENTS[arguments].items()}
    result = CALLS[call](lambda z: tridal.softmax(z, **keywords), x)
    if call.startswith(("eager", "repeated", "no_grad", "inference")):
        assert result.dtype is keywords.get("dtype", torch.float32)
    wide = values.clone().double()
    plain_call = {"compiled gradient": gradient, "backward in compiled": gradient, "compiled vmap": CALLS["eager"]}
    plain_call |= {"compiled functional gradient": gradient, "functional gradient": gradient}
    plain_call |= dict.fromkeys(("vmap", "thread", "compiled", "compiled dynamic"), CALLS["eager"])
    wanted = plain_call.get(call, CALLS[call])(lambda z: expected(z, keywords), wide)
    tolerance = 2e-2 if keywords.get("dtype") is torch.float16 else 2e-5
    plain_result = torch.Tensor(result.detach()) if type(result) is Subclass else result.detach()
    torch.testing.assert_close(plain_result.double(), wanted.double().detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_scaled_and_refuse_masks(device: torch.device, layout: torch.layout) -> None:
    parts = [torch.randn(3, 6, device=device), torch.randn(2, 6, device=device)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    functions: list[Function] = [lambda x: tridal.softmax(x, -1, scale=0.5)]
    if layout is torch.jagged:
        functions.append(torch.compile(functions[0], fullgraph=True, backend="eager"))
    for function in functions:
        for found, part in zip(function(nested).unbind(), parts, strict=True):
            torch.testing.assert_close(found, torch.softmax(part * 0.5, -1))
    refused: dict[str, Any]
    for refused in ({"mask": torch.ones(6, device=device)}, {"causal": True}, {"masked_rows": "zero"}):
        with pytest.raises(LayoutError, match="nested"):
            tridal.softmax(nested, -1, **refused)
    with pytest.raises(TypeError, match="scale must be a number"):
        tridal.softmax(nested, -1, scale=True)


def test_a_subclass_that_does_not_know_the_registered_op_is_computed_by_torch(device: torch.device) -> None:
    masked_tensor = pytest.importorskip("torch.masked").masked_tensor
    x = torch.randn(4, 6, device=device)
    found, wanted = (f(masked_tensor(x, x > 0), -1) for f in (tridal.softmax, torch.softmax))
    torch.testing.assert_close(found.get_data(), wanted.get_data())


def test_an_error_of_the_registered_op_is_not_hidden_for_other_subclasses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: OpCall, *tensors: torch.Tensor) -> torch.Tensor:
        raise TypeError("a fault of the op")

    monkeypatch.setattr(OpCall, "dispatch", fail)
    with pytest.raises(TypeError, match="a fault of the op"):
        tridal.softmax(torch.ones(2, 3, device=device).as_subclass(Subclass))


@pytest.mark.parametrize("module", [tridal.nn.Softmax, tridal.nn.LogSoftmax])
@pytest.mark.parametrize("dim", [1, None])
def test_modules_compile_and_script_with_and_without_a_dim(device: torch.device, module: Any, dim: int | None) -> None:
    x = torch.randn(4, 6, device=device)
    wanted = (torch.softmax if module is tridal.nn.Softmax else torch.log_softmax)(x, 1)
    compiled_module = torch.compile(module(dim), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled_module(x), wanted)
    torch.testing.assert_close(torch.jit.script(module(dim))(x), wanted)


@pytest.mark.parametrize("dim", [0, numpy.int64(0), True, 5, 1.0], ids=repr)
def test_a_compiled_call_accepts_and_refuses_the_dims_of_an_eager_call(device: torch.device, dim: Any) -> None:
    x, function = torch.randn(4, 6, device=device), compiled()
    try:
        wanted = tridal.softmax(x, dim)
    except (TypeError, IndexError) as error:
        with pytest.raises((type(error), torch._dynamo.exc.TorchRuntimeError)):
            function(lambda z: tridal.softmax(z, dim), x)
    else:
        torch.testing.assert_close(function(lambda z: tridal.softmax(z, dim), x), wanted)


def test_an_override_inside_a_compiled_function_computes(device: torch.device) -> None:
    def overridden(x: torch.Tensor) -> torch.Tensor:
        with tridal.override_torch():
            return torch.softmax(x, -1)

    x = torch.randn(4, 6, device=device)
    torch.testing.assert_close(compiled()(overridden, x), torch.softmax(x, -1))


def test_a_scale_of_nan_is_prepared_once(device: torch.device) -> None:
    x = torch.randn(4, 6, device=device)
    context = device_context(x.device)
    tridal.softmax(x, scale=float("nan"))
    before = len(context.forwards)
    assert tridal.softmax(x, scale=float("nan")).isnan().all()
    assert len(context.forwards) == before
