"""`OpBenchmark`: what `tridal bench` measures for an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

Function: TypeAlias = Callable[..., Tensor]
"""function(x, *arguments): an implementation that normalises along a fixed dim."""
MakeFunction: TypeAlias = Callable[[int], Function]
"""make(dim) returns the function. It imports the library, and raises NotImplementedError for an unsupported dim."""


@dataclass(frozen=True, slots=True)
class OpBenchmark:
    """How to measure an op."""

    functions: Mapping[str, MakeFunction] = field(default_factory=dict)
    """The implementations by provider name. Results are compared with "torch" or, without it, with "reference"."""
    arguments: Callable[[Tensor, int], tuple[Tensor, ...]] = lambda x, dim: ()
    """arguments(x, dim) returns further tensors of a call, for example a weight. Backward differentiates them too."""
    passes: Mapping[str, int] = field(default_factory=dict)
    """Useful traffic by direction: the number of tensors of the input's size that are read or written. By default, the
    tensors of the kernel: two forward (x, y), three backward (dy, saved, dx)."""
    aims: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Target share of `copy_`'s rate by shape class and direction."""
    suite: str = "rows"
    """The suite of shape classes, a key of `workloads.SUITES`."""
