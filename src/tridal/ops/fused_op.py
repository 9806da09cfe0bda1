"""The declaration of an op of several tensors: its kernels, its schemas, and its maths in torch's ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tridal.errors import PluginError
from tridal.runtime.row_kernel import RowKernel


@dataclass(frozen=True, eq=False)
class FusedOp:
    """An op that reads or writes several tensors, some of them optional. Compared and hashed by identity.

    `torch.ops.tridal.<name>`, its gradient, and the values of the commands' option `--op` are derived from it.
    `tridal.pytorch.fused_ops.define` adds the functions that run its kernels.
    """

    name: str
    kernels: tuple[RowKernel, ...]
    """Kernels with all of their tensors, which `tridal plan` knows by name. The first one has the op's name, and the
    second one, the kernel of the gradient, is called "<op>_backward". Empty if the op runs kernels of another op."""
    schema: str
    """The registered op's arguments and results, for example "(Tensor input, Tensor? weight, float eps) -> (Tensor,
    Tensor)". The registered op returns an empty tensor for a result that its arguments do not ask for."""
    backward_schema: str
    """The same for the gradient: the gradients of the results ("Tensor? dy"), what the forward saved, and
    `bool[] output_mask`, which selects results."""
    reference: Callable[..., tuple[torch.Tensor | None, ...]]
    """The op in torch's ops, with the arguments and results of `schema`. Autograd can differentiate it."""
    gradient: Callable[..., tuple[torch.Tensor | None, ...]]
    """The gradient in torch's ops, with the arguments and results of `backward_schema`. Autograd can differentiate it.
    With gradients enabled, it computes statistics again, because saved ones are constants for autograd."""
    gradient_index: tuple[int, ...]
    """For each argument of `schema`: the index of its gradient in the results of `backward_schema`, or -1. Two tensors
    that the op adds have the same gradient."""
    differentiable_results: int = 1
    """How many results have gradients. These are the first ones. Those after the first depend only on tensors whose
    `gradient_index` is 0."""

    def __post_init__(self) -> None:
        """Raises PluginError if a kernel has a fault."""
        for kernel in self.kernels:
            if (fault := kernel.fault()) is not None:
                raise PluginError(f"op {self.name!r} cannot be used: {fault}")

    @property
    def forward(self) -> RowKernel:
        """The kernel with the op's name."""
        return self.kernels[0]

    @property
    def backward(self) -> RowKernel:
        """The kernel of the gradient."""
        return self.kernels[1]

    @functools.cached_property
    def tensor_count(self) -> int:
        """Number of tensors among the arguments of `schema`. They are the first arguments."""
        return _tensors(self.schema)

    @functools.cached_property
    def backward_tensor_count(self) -> int:
        """Number of tensors among the arguments of `backward_schema`. They are the first arguments."""
        return _tensors(self.backward_schema)


def _tensors(schema: str) -> int:
    return schema.partition("->")[0].count("Tensor")
