"""The providers that `tridal bench` compares: implementations of torch's softmax, each imported only when used.

A provider's function takes an op and a dim. It returns a context manager that yields a function of one tensor. If the
provider raises, it is skipped and the exception is the reason. The interfaces are those of Liger-Kernel 0.8,
FlagGems 5 and quack 0.6.
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

import tridal

Function: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Provider:
    """An implementation of softmax."""

    name: str
    function: Callable[[str, int], AbstractContextManager[Function]]
    """Called as function(op, dim). Returns a context manager; the function that it yields is valid inside it."""
    package: str | None = None
    """Import name of the package that it needs; None if it needs none beyond tridal's own dependencies."""
    distribution: str | None = None
    """Name of the distribution that has the version to report; None for torch's version."""
    on_cpu: bool = True
    """Whether a run on a CPU includes it by default."""

    @property
    def missing(self) -> str | None:
        """Why the provider can't be measured; None if its package is installed."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return f"{self.package} is not installed" if absent else None

    def using(self, op: str, dim: int) -> AbstractContextManager[Function]:
        """Returns a context manager that yields the function for an op and a dim.

        Raises:
            ModuleNotFoundError: The package is not installed.
        """
        if self.missing:
            raise ModuleNotFoundError(self.missing)
        return self.function(op, dim)

    @property
    def version(self) -> str | None:
        """Version of the package, or of torch; None if the package is not installed."""
        if self.missing:
            return None
        return metadata.version(self.distribution) if self.distribution else str(torch.__version__)


@contextmanager
def _tridal(op: str, dim: int) -> Iterator[Function]:
    yield functools.partial(getattr(tridal, op), dim=dim)


@contextmanager
def _torch(op: str, dim: int) -> Iterator[Function]:
    yield functools.partial(getattr(torch, op), dim=dim)


def _naive_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    numerator = z.exp()
    return numerator / numerator.sum(dim, keepdim=True)


def _naive_log_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    z = x - x.max(dim, keepdim=True)[0]
    return z - z.exp().sum(dim, keepdim=True).log()


_NAIVE = {"softmax": _naive_softmax, "log_softmax": _naive_log_softmax}


@contextmanager
def _naive(op: str, dim: int) -> Iterator[Function]:
    yield functools.partial(_NAIVE[op], dim=dim)


@contextmanager
def _script(op: str, dim: int) -> Iterator[Function]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script warns that it is deprecated
        scripted = torch.jit.script(_NAIVE[op])
    yield lambda x: scripted(x, dim)


@contextmanager
def _compile(op: str, dim: int) -> Iterator[Function]:
    import torch._functorch.config

    torch._dynamo.reset()  # compile every shape again; otherwise dynamo's recompile limit makes later shapes eager
    function = getattr(torch, op)
    with torch._functorch.config.patch(donated_buffer=False):  # the benchmark runs backward repeatedly on one graph
        yield torch.compile(lambda x: function(x, dim), dynamic=False)


@contextmanager
def _liger(op: str, dim: int) -> Iterator[Function]:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    _check_supported("softmax", op, dim)
    yield LigerSoftmaxFunction.apply


@contextmanager
def _flag_gems(op: str, dim: int) -> Iterator[Function]:
    import flag_gems

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="only_enable failed")  # otherwise torch's kernels run instead
        with flag_gems.use_gems(include=[op, f"{op}_backward"]):  # replaces torch's kernels inside this context
            yield functools.partial(getattr(torch, op), dim=dim)


@contextmanager
def _quack(op: str, dim: int) -> Iterator[Function]:
    from quack.softmax import softmax

    _check_supported("softmax", op, dim)
    yield softmax


def _check_supported(supported_op: str, op: str, dim: int) -> None:
    if op != supported_op:
        raise NotImplementedError(f"supports only {supported_op}")
    if dim != -1:
        raise NotImplementedError("supports only the last dimension")


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("tridal", _tridal, distribution="tridal"),
        Provider("torch", _torch),
        Provider("naive", _naive),
        Provider("torch.jit.script", _script),
        Provider("torch.compile", _compile, on_cpu=False),
        Provider("Liger-Kernel", _liger, "liger_kernel", "liger-kernel", on_cpu=False),
        Provider("FlagGems", _flag_gems, "flag_gems", "flag-gems", on_cpu=False),
        Provider("quack", _quack, "quack", "quack-kernels", on_cpu=False),
    )
}
COPY = "copy"
"""Name of `y.copy_(x)` in the results. Its time is the floor for every provider."""


def reference(op: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns torch's result in at least float32, to which every provider's result is compared."""
    result: torch.Tensor = getattr(torch, op)(x.to(torch.promote_types(x.dtype, torch.float32)), dim)
    return result
