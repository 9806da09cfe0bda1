"""The providers that `tridal bench` compares: implementations of an op. Packages are imported only when used.

The providers call the interfaces of Liger-Kernel 0.8, FlagGems 5 and quack 0.6.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TypeAlias

import torch
from torch import Tensor

from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.pytorch.private import repeatable_backward
from tridal.testing.implementation import public_function

COPY, OURS = "copy", "tridal"
"""Provider names in the results. "copy" is `y.copy_(x)`, whose time is a lower bound for every provider."""

Function: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Provider:
    """An implementation of one or more ops."""

    name: str
    function: Callable[[RowOp, int], Function]  # function(op, dim); raises an error if either is not supported
    package: str | None = None  # import name of the package; None if tridal's dependencies suffice
    distribution: str | None = None  # distribution whose version is reported; None for torch
    on_cpu: bool = True  # whether a run on a CPU includes it by default
    includes: Callable[[RowOp], bool] = lambda op: True  # whether a run with this op includes it by default
    context: Callable[[RowOp], AbstractContextManager[object]] = lambda op: nullcontext()  # active during calls

    @property
    def missing(self) -> str | None:
        """The reason why the provider cannot be measured, or None if its package is installed."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return f"{self.package} is not installed" if absent else None

    @contextmanager
    def using(self, op: str, dim: int) -> Iterator[Function]:
        """Yields the provider's function for an op. Raises ModuleNotFoundError if the package is not installed."""
        if self.missing:
            raise ModuleNotFoundError(self.missing)
        row_op = table.op_named(op)
        function = self.function(row_op, dim)
        with self.context(row_op):
            yield function

    @property
    def version(self) -> str | None:
        """Version of the package, or of torch; None if the package is not installed."""
        if self.missing:
            return None
        return metadata.version(self.distribution) if self.distribution else str(torch.__version__)


def _torch(op: RowOp, dim: int) -> Function:
    if op.torch_function is None:
        raise NotImplementedError(f"torch has no function for {op.name}")
    return partial(op.torch_function, dim=dim)


def _reference(op: RowOp, dim: int) -> Function:
    """Returns the op's reference, which computes in at least float32."""

    def compute(x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return op.compute(wide, dim, tuple(op.parameters.values())).to(x.dtype)

    return compute


def _naive_softmax(x: Tensor, dim: int) -> Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    numerator = z.exp()
    return numerator / numerator.sum(dim, keepdim=True)


def _naive_log_softmax(x: Tensor, dim: int) -> Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    return z - z.exp().sum(dim, keepdim=True).log()


_NAIVE = {"softmax": _naive_softmax, "log_softmax": _naive_log_softmax}
"""The functions of Triton's softmax tutorial. They have no generic form because torch.jit.script must compile them."""


def _naive(op: RowOp) -> Callable[..., Tensor]:
    if op.name not in _NAIVE:
        raise NotImplementedError(f"supports only {' and '.join(_NAIVE)}")
    return _NAIVE[op.name]


def _script(op: RowOp, dim: int) -> Function:
    function = _naive(op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script warns that it is deprecated
        scripted = torch.jit.script(function)
    return lambda x: scripted(x, dim)


def _compile(op: RowOp, dim: int) -> Function:
    torch.compiler.reset()  # compile every shape again; otherwise dynamo's recompile limit makes later shapes eager
    if op.torch_function is None:
        return torch.compile(_reference(op, dim), dynamic=False)
    function = op.torch_function
    return torch.compile(lambda x: function(x, dim), dynamic=False)


def _liger(op: RowOp, dim: int) -> Function:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    _check_is_softmax_of_last_dim(op, dim)
    return LigerSoftmaxFunction.apply  # type: ignore[no-any-return]


def _quack(op: RowOp, dim: int) -> Function:
    from quack.softmax import softmax

    _check_is_softmax_of_last_dim(op, dim)
    return softmax  # type: ignore[no-any-return]


def _check_is_softmax_of_last_dim(op: RowOp, dim: int) -> None:
    if op.name != "softmax":
        raise NotImplementedError("supports only softmax")
    if dim != -1:
        raise NotImplementedError("supports only the last dimension")


@contextmanager
def _flag_gems_kernels(op: RowOp) -> Iterator[None]:
    """Replaces torch's kernels for the op with those of FlagGems."""
    import flag_gems

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="only_enable failed")  # otherwise torch's kernels run instead
        with flag_gems.use_gems(include=[op.forward.name, op.backward.name]):
            yield


_PROVIDERS = (
    Provider(OURS, lambda op, dim: partial(public_function(op.name), dim=dim), distribution="tridal"),
    Provider("torch", _torch, includes=lambda op: op.torch_function is not None),
    Provider("reference", _reference, includes=lambda op: op.torch_function is None),
    Provider("naive", lambda op, dim: partial(_naive(op), dim=dim), includes=lambda op: op.name in _NAIVE),
    Provider("torch.jit.script", _script, includes=lambda op: op.name in _NAIVE),
    # The benchmark runs backward repeatedly on one graph.
    Provider("torch.compile", _compile, on_cpu=False, context=lambda op: repeatable_backward()),
    Provider("Liger-Kernel", _liger, "liger_kernel", "liger-kernel", on_cpu=False),
    Provider("FlagGems", _torch, "flag_gems", "flag-gems", on_cpu=False, context=_flag_gems_kernels),
    Provider("quack", _quack, "quack", "quack-kernels", on_cpu=False),
)
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _PROVIDERS}
