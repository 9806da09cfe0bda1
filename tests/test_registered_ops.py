"""The registered ops: torch's own checks of them, and what modes, tracers and tensor subclasses see."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import tridal
from third_party_op import UNIT_NORM
from tridal.errors import DimensionError, DTypeError, ShapeError, TensorDeviceError
from tridal.ops import table
from tridal.pytorch.path.function import register
from tridal.runtime import launch


@pytest.fixture(params=["softmax", "log_softmax"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_opcheck(device: torch.device, name: str, requires_grad: bool, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, device=device).transpose(0, 1).requires_grad_(requires_grad)
    torch.library.opcheck(getattr(torch.ops.tridal, name), (x, -2, dtype))
    g = torch.randn(4, 3, 5, device=device, requires_grad=requires_grad)
    y = torch.softmax(x.detach(), 1).contiguous().requires_grad_(requires_grad)
    torch.library.opcheck(getattr(torch.ops.tridal, f"{name}_backward"), (g, y, 1, torch.float32))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", [None, torch.bool, torch.float32])
def test_opcheck_with_masks(device: torch.device, requires_grad: bool, kind: torch.dtype | None) -> None:
    x = torch.randn(2, 3, 4, 5, device=device).transpose(0, 1).requires_grad_(requires_grad)
    mask = None if kind is None else (torch.rand(2, 4, 1, device=device) > -1).to(kind)
    for dim, causal in ((-1, True), (1, False)):
        torch.library.opcheck(torch.ops.tridal.softmax, (x, dim, torch.float32, mask, 0.5, causal, True))
    g = torch.randn(4, 5, device=device, requires_grad=requires_grad)
    torch.library.opcheck(torch.ops.tridal.softmax_backward, (g, g.detach().softmax(-1), -1, torch.float32, 0.5))


def test_opcheck_on_a_device_without_a_backend(name: str) -> None:
    x, mask = torch.randn(3, 5), torch.arange(5) != 3
    torch.library.opcheck(torch.ops.tridal.softmax, (x, -1, torch.float32, mask, 2.0, True))
    torch.library.opcheck(getattr(torch.ops.tridal, name), (torch.randn(3, 5), -1, torch.float32))


def test_fake_tensors_have_shape_dtype_and_device(device: torch.device, name: str) -> None:
    with FakeTensorMode():
        x = torch.empty(3, 4, 5, device=device).transpose(0, 2)
        y = getattr(tridal, name)(x, 1, torch.float64)
    assert (y.shape, y.dtype, y.device.type) == ((5, 4, 3), torch.float64, device.type)
    assert y.is_contiguous()


def test_meta_tensors_have_shape_dtype_and_device(name: str) -> None:
    y = getattr(tridal, name)(torch.empty(3, 5, device="meta"), -1)
    assert (y.shape, y.device.type) == ((3, 5), "meta")
    y = getattr(torch.ops.tridal, name)(torch.empty(3, 5, device="meta"), -1, torch.float16)
    assert (y.shape, y.dtype, y.device.type) == ((3, 5), torch.float16, "meta")


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_the_op(device: torch.device, name: str, mode: str) -> None:
    graph = make_fx(lambda x: getattr(tridal, name)(x), tracing_mode=mode)(torch.randn(3, 5, device=device))
    assert f"tridal.{name}.default" in [str(node.target) for node in graph.graph.nodes]
    x = torch.randn(3, 5, device=device)
    assert_close(graph(x), getattr(torch, name)(x, -1))


def test_symbolic_trace_records_the_function(name: str) -> None:
    graph = torch.fx.symbolic_trace(lambda x: getattr(tridal, name)(x, 0)).graph
    assert getattr(tridal, name) in [node.target for node in graph.nodes]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_records_the_op(device: torch.device, name: str) -> None:
    traced = torch.jit.trace(lambda x: getattr(tridal, name)(x), (torch.randn(3, 5, device=device),))
    x = torch.randn(3, 5, device=device)
    assert_close(traced(x), getattr(torch, name)(x, -1))


def test_dispatch_modes_see_the_op(device: torch.device, name: str) -> None:
    class Record(TorchDispatchMode):
        seen: list[str]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 5, device=device, requires_grad=True)
    with Record() as record:
        record.seen = []
        getattr(tridal, name)(x).sum().backward()
    assert {f"tridal.{name}.default", f"tridal.{name}_backward.default"} <= set(record.seen)


def test_function_modes_see_the_function(device: torch.device, name: str) -> None:
    class Record(TorchFunctionMode):
        seen: list[Any]

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 5, device=device)
    with Record() as record:
        record.seen = []
        y = getattr(tridal, name)(x)
    assert getattr(tridal, name) in record.seen
    assert_close(y, getattr(torch, name)(x, -1))


def test_default_device_does_not_change_the_result(device: torch.device, name: str) -> None:
    x = torch.randn(3, 5, device=device)
    with torch.device("meta"):
        y = getattr(tridal, name)(x)
    assert_close(y, getattr(torch, name)(x, -1))


def test_subclasses_keep_their_type(device: torch.device, name: str) -> None:
    class Named(torch.Tensor):
        pass

    x = torch.randn(3, 5, device=device).as_subclass(Named).requires_grad_()
    y = getattr(tridal, name)(x)
    assert type(y) is Named
    y.square().sum().backward()
    assert isinstance(x.grad, torch.Tensor)


def test_parameter_input_gives_a_plain_tensor(device: torch.device, name: str) -> None:
    p = torch.nn.Parameter(torch.randn(3, 5, device=device))
    y = getattr(tridal, name)(p)
    assert type(y) is torch.Tensor
    assert y.requires_grad


class Wrapper(torch.Tensor):
    """A wrapper subclass that applies each op to the tensor in `held`."""

    held: torch.Tensor
    seen: list[str]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Wrapper:
        self = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device
        )
        self.held = held
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        unwrapped = [a.held if isinstance(a, Wrapper) else a for a in args]
        result = func(*unwrapped, **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


def test_wrapper_subclasses_see_the_op_and_its_gradient(device: torch.device, name: str) -> None:
    Wrapper.seen = []
    x = torch.randn(3, 5, dtype=torch.float64, device=device)
    g = torch.randn(3, 5, dtype=torch.float64, device=device)
    wrapped = Wrapper(x).requires_grad_()
    y = getattr(tridal, name)(wrapped)
    assert type(y) is Wrapper
    (dx,) = torch.autograd.grad(y, wrapped, Wrapper(g))
    assert {f"tridal.{name}.default", f"tridal.{name}_backward.default"} <= set(Wrapper.seen)
    plain = x.clone().requires_grad_()
    expected = getattr(torch, name)(plain, -1)
    assert_close(y.held, expected.detach())
    assert_close(dx.held, torch.autograd.grad(expected, plain, g)[0])


def test_wrapper_subclasses_compile(device: torch.device, name: str) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.randn(3, 5, device=device)
    two = TwoTensor(x, x * 2).requires_grad_()
    y = torch.compile(getattr(tridal, name), fullgraph=True, backend="aot_eager")(two)
    assert_close(y.b, getattr(torch, name)(x * 2, -1))
    y.sum().backward()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_computes_nested_tensors(device: torch.device) -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 5), torch.randn(3, 5)], device=device)
    for ours, theirs in zip(tridal.softmax(nested).unbind(), nested.unbind(), strict=True):
        assert_close(ours, torch.softmax(theirs, -1))


def test_negative_views(device: torch.device, name: str) -> None:
    for x in (torch.randn(3, 5, dtype=torch.complex64, device=device).conj().imag, torch._neg_view(torch.randn(3, 5))):
        x = x.to(device)
        assert_close(getattr(tridal, name)(x), getattr(torch, name)(x, -1))
    negated = torch._neg_view(torch.randn(3, 5, device=device))
    assert negated.is_neg()
    assert_close(getattr(tridal, name)(negated), getattr(torch, name)(negated, -1))


def test_zero_tensors_without_memory(device: torch.device, name: str) -> None:
    zeros = torch._efficientzerotensor((3, 5), device=device)
    assert_close(getattr(tridal, name)(zeros), getattr(torch, name)(torch.zeros(3, 5, device=device), -1))


def test_opcheck_of_zero_dim_tensors(device: torch.device, name: str) -> None:
    x = torch.randn((), device=device)
    torch.library.opcheck(getattr(torch.ops.tridal, name), (x, 0, torch.float32))


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch, nothing_prepared: None) -> None:
    """Fails if a kernel is prepared."""

    def fail(*_: Any) -> None:
        raise AssertionError("a kernel was prepared")

    monkeypatch.setattr(launch, "prepare", fail)


X = torch.ones(6, 8)
INVALID_GRADIENTS: dict[str, tuple[tuple[Any, ...], type[Exception]]] = {
    "smaller saved tensor": ((torch.ones(512, 64), torch.ones(1, 5), 1, torch.float32), ShapeError),
    "larger saved tensor": ((torch.ones(1, 5), torch.ones(512, 64), 1, torch.float32), ShapeError),
    "broadcast gradient": ((torch.ones(6, 1), X, 1, torch.float32), ShapeError),
    "other order of dims": ((torch.ones(8, 6), X, 1, torch.float32), ShapeError),
    "other rank": ((torch.ones(48), X, 0, torch.float32), ShapeError),
    "empty saved tensor": ((X, torch.ones(0, 8), 1, torch.float32), ShapeError),
    "zero-dim gradient": ((torch.ones(()), X, 0, torch.float32), ShapeError),
    "dim above the range": ((X, X, 2, torch.float32), DimensionError),
    "dim below the range": ((X, X, -3, torch.float32), DimensionError),
    "integer gradient": ((X.int(), X, 1, torch.float32), DTypeError),
    "integer saved tensor": ((X, X.long(), 1, torch.float32), DTypeError),
    "boolean gradient": ((X.bool(), X, 1, torch.float32), DTypeError),
    "complex saved tensor": ((X, X.cfloat(), 1, torch.float32), DTypeError),
    "integer result": ((X, X, 1, torch.int32), DTypeError),
    "complex result": ((X, X, 1, torch.complex64), DTypeError),
}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(("arguments", "error"), INVALID_GRADIENTS.values(), ids=INVALID_GRADIENTS)
@pytest.mark.parametrize("mode", ["plain", "meta", "autograd", "vmap", "no backend"])
@pytest.mark.parametrize("name", [*table.one_tensor_ops(), UNIT_NORM.name])
def test_invalid_gradients_raise_before_a_kernel_is_prepared(
    device: torch.device, name: str, mode: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    register(UNIT_NORM)
    grad, saved, dim, dtype = arguments
    op = getattr(torch.ops.tridal, f"{name}_backward")
    target = {"meta": torch.device("meta"), "no backend": torch.device("cpu")}.get(mode, device)
    grad, saved = grad.to(target), saved.to(target)
    if mode == "vmap":
        with pytest.raises(error):
            torch.vmap(lambda g, s: op(g, s, dim, dtype))(torch.stack([grad, grad]), torch.stack([saved, saved]))
        return
    if mode == "autograd":
        saved = saved.clone().requires_grad_(saved.is_floating_point())
    with tridal.use(device="auto") if mode == "no backend" else tridal.use(), pytest.raises(error):
        op(grad, saved, dim, dtype)


@pytest.mark.usefixtures("no_launch")
def test_gradients_of_tensors_on_two_devices_raise(device: torch.device, name: str) -> None:
    op, x = getattr(torch.ops.tridal, f"{name}_backward"), X.to(device)
    for tensors in ((x, torch.empty(6, 8, device="meta")), (torch.empty(6, 8, device="meta"), x)):
        with pytest.raises(TensorDeviceError, match="on one device"):
            op(*tensors, 1, torch.float32)


def test_an_invalid_gradient_raises_after_a_valid_one_is_prepared(device: torch.device, name: str) -> None:
    op, x = getattr(torch.ops.tridal, f"{name}_backward"), X.to(device)
    op(x, x, 1, torch.float32)
    for saved in (x[:1], x[:, :5].contiguous(), x[None], x.t().contiguous()):
        shape = tuple(saved.shape)
        message = f"grad has a number per element: expected the shape {shape}, got (6, 8), with output of shape {shape}"
        with pytest.raises(ShapeError, match=re.escape(message)):
            op(x, saved, 1, torch.float32)


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((X, 2, torch.float32), DimensionError),
        ((X, 1, torch.int32), DTypeError),
        ((X.cfloat(), 1, torch.float32), DTypeError),
        ((X, 1, torch.float32, torch.ones(7)), DimensionError),
        ((X, 1, torch.float32, torch.ones(2, 6, 8)), DimensionError),
        ((X, 1, torch.float32, X.int()), DTypeError),
        ((X, 0, torch.float32, None, 1.0, True), DimensionError),
        ((X[0], 0, torch.float32, None, 1.0, True), DimensionError),
    ],
)
def test_invalid_calls_raise_before_a_kernel_is_prepared(
    device: torch.device, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    for target in (device, torch.device("meta")):
        moved = [value.to(target) if isinstance(value, torch.Tensor) else value for value in arguments]
        with pytest.raises(error):
            torch.ops.tridal.softmax(*moved)
