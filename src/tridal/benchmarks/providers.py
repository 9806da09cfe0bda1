"""The providers that `tridal bench` compares: libraries with implementations of ops. Does not import torch.

Each op's `OpBenchmark` has their functions. They call the interfaces of Liger-Kernel 0.8, FlagGems 5 and quack 0.6.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

COPY, OURS = "copy", "tridal"
"""Provider names in the results. "copy" is `y.copy_(x)`, whose time is a lower bound for every provider."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A library with implementations of ops."""

    name: str
    package: str | None = None  # import name of the package; None if tridal's dependencies suffice
    distribution: str | None = "torch"  # distribution whose version is reported
    on_cpu: bool = True  # whether a run on a CPU includes it by default

    @property
    def missing(self) -> str | None:
        """The reason why the provider cannot be measured, or None if its package is installed."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return f"{self.package} is not installed: pip install {self.distribution}" if absent else None

    @property
    def version(self) -> str | None:
        """Version of the library, or None if it is not installed or not known."""
        return None if self.missing or not self.distribution else metadata.version(self.distribution)


@contextmanager
def flag_gems_kernels(op: str) -> Iterator[None]:
    """Replaces torch's kernels for the op, and for its backward, with those of FlagGems."""
    import flag_gems

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="only_enable failed")  # otherwise torch's kernels run instead
        with flag_gems.use_gems(include=[op, f"{op}_backward"]):
            yield


_PROVIDERS = (
    Provider(OURS, distribution="tridal"),
    Provider("torch"),
    Provider("reference"),
    Provider("naive"),
    Provider("torch.jit.script"),
    Provider("torch.compile", on_cpu=False),
    Provider("Liger-Kernel", "liger_kernel", "liger-kernel", on_cpu=False),
    Provider("FlagGems", "flag_gems", "flag-gems", on_cpu=False),
    Provider("quack", "quack", "quack-kernels", on_cpu=False),
)
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _PROVIDERS}
