"""Who is measured: ways to compute a softmax with torch's meaning. Each is imported only when it is asked for.

A provider is a context manager that yields a function of one tensor, for an op and a dim; whatever it raises is the
reason why it is left out. Interfaces as of Liger-Kernel 0.8, FlagGems 5 and quack 0.6.
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
    """A way to compute a softmax."""

    name: str
    function: Callable[[str, int], AbstractContextManager[Function]]
    """function(op, dim): a context in which the function can be called."""
    package: str | None = None
    """The package it comes in; None if it is always here."""
    distribution: str | None = None
    on_cpu: bool = True
    """Whether it is measured on a CPU without being asked for."""

    @property
    def missing(self) -> str | None:
        """Why it can't be measured here, if its package is not installed."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return f"{self.package} is not installed" if absent else None

    def using(self, op: str, dim: int) -> AbstractContextManager[Function]:
        """`function`, where the package is installed."""
        if self.missing:
            raise ModuleNotFoundError(self.missing)
        return self.function(op, dim)

    @property
    def version(self) -> str | None:
        """Version of the package, or of torch."""
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
        warnings.simplefilter("ignore")  # it is deprecated, and says so
        scripted = torch.jit.script(_NAIVE[op])
    yield lambda x: scripted(x, dim)


@contextmanager
def _compile(op: str, dim: int) -> Iterator[Function]:
    import torch._functorch.config

    torch._dynamo.reset()  # each shape gets a kernel of its own, and none falls back for the number of them
    function = getattr(torch, op)
    with torch._functorch.config.patch(donated_buffer=False):  # a gradient is measured many times over one graph
        yield torch.compile(lambda x: function(x, dim), dynamic=False)


@contextmanager
def _liger(op: str, dim: int) -> Iterator[Function]:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    _only("softmax", op, dim)
    yield LigerSoftmaxFunction.apply


@contextmanager
def _flag_gems(op: str, dim: int) -> Iterator[Function]:
    import flag_gems

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="only_enable failed")  # and torch's own kernels would be measured
        enabled = flag_gems.use_gems(include=[op, f"{op}_backward"])  # replaces torch's kernels meanwhile
        with enabled:
            yield functools.partial(getattr(torch, op), dim=dim)


@contextmanager
def _quack(op: str, dim: int) -> Iterator[Function]:
    from quack.softmax import softmax

    _only("softmax", op, dim)
    yield softmax


def _only(known: str, op: str, dim: int) -> None:
    if op != known:
        raise NotImplementedError(f"has {known} alone")
    if dim != -1:
        raise NotImplementedError("reduces the last dimension alone")


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
"""What `y.copy_(x)` is called among the results: the floor of any of them."""


def reference(op: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    """What every provider has to come near to, in float32 or better."""
    result: torch.Tensor = getattr(torch, op)(x.to(torch.promote_types(x.dtype, torch.float32)), dim)
    return result
