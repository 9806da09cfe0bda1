"""Checks of the arguments of registered ops and of their gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from torch_versions import compiled_error
from tridal.errors import DimensionError, DTypeError, ShapeError
from tridal.library.glu.glu import SWIGLU
from tridal.runtime import launch


@pytest.fixture(params=["softmax", "log_softmax"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch, no_calls: None) -> None:
    """Fails if a kernel is prepared."""

    def fail(*_: Any) -> None:
        raise AssertionError("a kernel was prepared")

    monkeypatch.setattr(launch, "prepare", fail)


X = torch.ones(6, 8)


class Subclass(torch.Tensor):
    """A tensor that is not plain."""


def of_two(input: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return tridal.swiglu(input, up)


@tridal.pytorch.op_function(SWIGLU)
def unchecked(call: Any, input: torch.Tensor, up: torch.Tensor) -> Any:
    """The same with a body that checks nothing."""
    return call(input, up, -1, input.dtype, None, "")


PATHS: dict[str, Callable[..., Any]] = {
    "plain": of_two,
    "body without checks": unchecked,
    "meta": lambda *tensors: of_two(*[t.to("meta") for t in tensors]),
    "subclass": lambda *tensors: of_two(*[t.as_subclass(Subclass) for t in tensors]),
    "masked": lambda x, up: of_two(torch.masked.masked_tensor(x, x > 0), up),
    "autograd": lambda x, up: of_two(x.clone().requires_grad_(), up),
    "vmap": lambda x, up: torch.vmap(of_two, (0, None))(x[None], up),
    "forward AD": lambda x, up: torch.func.jvp(lambda x: of_two(x, up), (x,), (x,)),
    "compiled": lambda *tensors: torch.compile(of_two, backend="eager")(*tensors),
}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.filterwarnings("ignore:.*MaskedTensor:UserWarning")
@pytest.mark.parametrize("where", ["device", "no backend"])
@pytest.mark.parametrize("path", PATHS)
def test_a_tensor_that_torch_would_broadcast_is_an_error(device: torch.device, path: str, where: str) -> None:
    place = torch.device("cpu") if where == "no backend" else device
    for up in (X[0], X[:, :1]):
        shape = tuple(up.shape)
        message = f"swiglu: up must have the shape (6, 8), got {shape}: a number per element of input"
        torch.compiler.reset()
        with (
            tridal.use(device="auto" if where == "no backend" else None),
            pytest.raises(Exception, match=compiled_error(re.escape(message))),
        ):
            PATHS[path](X.to(place), up.to(place))


INVALID_GRADIENTS: dict[str, tuple[tuple[Any, ...], type[Exception]]] = {
    "smaller saved tensor": ((torch.ones(512, 64), torch.ones(1, 5), 1, torch.float32), ShapeError),
    "broadcast gradient": ((torch.ones(6, 1), X, 1, torch.float32), ShapeError),
    "other order of dims": ((torch.ones(8, 6), X, 1, torch.float32), ShapeError),
    "zero-dim gradient": ((torch.ones(()), X, 0, torch.float32), ShapeError),
    "dim out of range": ((X, X, 2, torch.float32), DimensionError),
    "integer gradient": ((X.int(), X, 1, torch.float32), DTypeError),
    "complex saved tensor": ((X, X.cfloat(), 1, torch.float32), DTypeError),
    "integer result": ((X, X, 1, torch.int32), DTypeError),
}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(("arguments", "error"), INVALID_GRADIENTS.values(), ids=INVALID_GRADIENTS)
@pytest.mark.parametrize("place", ["device", "meta", "no backend"])
def test_invalid_gradients_raise_before_a_kernel_is_prepared(
    device: torch.device, name: str, place: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    op, (grad, saved, dim, dtype) = getattr(torch.ops.tridal, f"{name}_backward"), arguments
    target = {"meta": torch.device("meta"), "no backend": torch.device("cpu")}.get(place, device)
    grad, saved = grad.to(target), saved.to(target)
    with tridal.use(device="auto") if place == "no backend" else tridal.use():
        with pytest.raises(error):
            op(grad, saved.clone().requires_grad_(saved.is_floating_point()), dim, dtype)
        with pytest.raises(error):
            torch.vmap(lambda g, s: op(g, s, dim, dtype))(torch.stack([grad, grad]), torch.stack([saved, saved]))
