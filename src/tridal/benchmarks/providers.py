"""The providers that `tridal bench` compares: implementations of an op. Packages are imported only when used.

A provider's function takes an op and a dim. It returns a context manager that yields a function of one tensor. If it
raises, for example because the provider does not have the op, the benchmark skips the provider and reports the reason.
The interfaces are those of Liger-Kernel 0.8, FlagGems 5 and quack 0.6.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TypeAlias

import torch

from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.pytorch.private import repeatable_backward
from tridal.testing import checking
from tridal.testing.implementation import public_function

Function: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Provider:
    """An implementation of one or more ops."""

    name: str
    function: Callable[[RowOp, int], AbstractContextManager[Function]]
    """Called as function(op, dim). Returns a context manager; the function that it yields is valid inside it."""
    package: str | None = None
    """Import name of the package that it needs; None if it needs none beyond tridal's own dependencies."""
    distribution: str | None = None
    """Name of the distribution that has the version to report; None for torch's version."""
    on_cpu: bool = True
    """Whether a run on a CPU includes it by default."""
    includes: Callable[[RowOp], bool] = lambda op: True
    """includes(op): whether a run with this op includes it by default."""

    @property
    def missing(self) -> str | None:
        """The reason why the provider cannot be measured; None if its package is installed."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return f"{self.package} is not installed" if absent else None

    def using(self, op: str, dim: int) -> AbstractContextManager[Function]:
        """Returns a context manager that yields the function for a dim and the op with this name.

        Raises:
            ModuleNotFoundError: the package is not installed.
            PlanError: the op is unknown. The message suggests similar names.
        """
        if self.missing:
            raise ModuleNotFoundError(self.missing)
        return self.function(table.op_named(op), dim)

    @property
    def version(self) -> str | None:
        """Version of the package, or of torch; None if the package is not installed."""
        if self.missing:
            return None
        return metadata.version(self.distribution) if self.distribution else str(torch.__version__)


@contextmanager
def _tridal(op: RowOp, dim: int) -> Iterator[Function]:
    yield functools.partial(public_function(op.name), dim=dim)


@contextmanager
def _torch(op: RowOp, dim: int) -> Iterator[Function]:
    yield functools.partial(_torch_function(op), dim=dim)


def _torch_function(op: RowOp) -> Callable[..., torch.Tensor]:
    if op.torch_function is None:
        raise NotImplementedError(f"torch has no function for {op.name}")
    return op.torch_function


@contextmanager
def _reference(op: RowOp, dim: int) -> Iterator[Function]:
    yield functools.partial(_compute_reference, op, dim=dim)


def _compute_reference(op: RowOp, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Computes the op's reference, in at least float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return op.compute(wide, dim, tuple(op.parameters.values())).to(x.dtype)


def _naive_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    numerator = z.exp()
    return numerator / numerator.sum(dim, keepdim=True)


def _naive_log_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    return z - z.exp().sum(dim, keepdim=True).log()


_NAIVE: Mapping[str, Callable[..., torch.Tensor]] = {
    "softmax": _naive_softmax,
    "log_softmax": _naive_log_softmax,
}
"""The functions of Triton's softmax tutorial. They have no generic form because torch.jit.script must compile them."""


@contextmanager
def _naive(op: RowOp, dim: int) -> Iterator[Function]:
    _check_op(op, *_NAIVE)
    yield functools.partial(_NAIVE[op.name], dim=dim)


@contextmanager
def _script(op: RowOp, dim: int) -> Iterator[Function]:
    _check_op(op, *_NAIVE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script warns that it is deprecated
        scripted = torch.jit.script(_NAIVE[op.name])
    yield lambda x: scripted(x, dim)


@contextmanager
def _compile(op: RowOp, dim: int) -> Iterator[Function]:
    torch.compiler.reset()  # compile every shape again; otherwise dynamo's recompile limit makes later shapes eager
    function: Callable[..., torch.Tensor] = op.torch_function or functools.partial(_compute_reference, op)
    with repeatable_backward():  # the benchmark runs backward repeatedly on one graph
        yield torch.compile(lambda x: function(x, dim), dynamic=False)


@contextmanager
def _liger(op: RowOp, dim: int) -> Iterator[Function]:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    _check_op(op, "softmax")
    _check_last_dim(dim)
    yield LigerSoftmaxFunction.apply


@contextmanager
def _flag_gems(op: RowOp, dim: int) -> Iterator[Function]:
    import flag_gems

    function = _torch_function(op)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="only_enable failed")  # otherwise torch's kernels run instead
        # replaces torch's kernels inside this context
        with flag_gems.use_gems(include=[op.forward.name, op.backward.name]):
            yield functools.partial(function, dim=dim)


@contextmanager
def _quack(op: RowOp, dim: int) -> Iterator[Function]:
    from quack.softmax import softmax

    _check_op(op, "softmax")
    _check_last_dim(dim)
    yield softmax


def _check_op(op: RowOp, *supported: str) -> None:
    if op.name not in supported:
        raise NotImplementedError(f"supports only {' and '.join(supported)}")


def _check_last_dim(dim: int) -> None:
    if dim != -1:
        raise NotImplementedError("supports only the last dimension")


def _is_naive(op: RowOp) -> bool:
    return op.name in _NAIVE


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("tridal", _tridal, distribution="tridal"),
        Provider("torch", _torch, includes=lambda op: op.torch_function is not None),
        Provider("reference", _reference, includes=lambda op: op.torch_function is None),
        Provider("naive", _naive, includes=_is_naive),
        Provider("torch.jit.script", _script, includes=_is_naive),
        Provider("torch.compile", _compile, on_cpu=False),
        Provider("Liger-Kernel", _liger, "liger_kernel", "liger-kernel", on_cpu=False),
        Provider("FlagGems", _flag_gems, "flag_gems", "flag-gems", on_cpu=False),
        Provider("quack", _quack, "quack", "quack-kernels", on_cpu=False),
    )
}
COPY = "copy"
"""Name of `y.copy_(x)` in the results. Its time is the floor for every provider."""


def reference(op: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the result to which every provider's result is compared, in at least float32.

    torch's own function computes it; without one, the op's reference.
    """
    return checking.reference(table.op_named(op), x.to(torch.promote_types(x.dtype, torch.float32)), dim)
