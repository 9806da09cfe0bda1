"""What the conformance cases of swiglu and geglu need besides their declarations."""

from __future__ import annotations

import torch

from tridal.testing import Case, OpCases, make_values


def _tensors(case: Case) -> dict[str, torch.Tensor]:
    """Returns gates of large magnitudes for dominant values, and tensors of two columns without `up`."""
    shape = [*case.shape]
    if "up" in case.absent:
        shape[case.dim] = 2
    gate = make_values(case.values, tuple(shape), case.dim)
    if case.values == "dominant":
        magnitudes = torch.tensor([40.0, -40.0, 88.0, -88.0, 104.0, -104.0, 1e4, -1e4], dtype=gate.dtype)
        gate = torch.where(gate > 30, magnitudes[torch.arange(gate.numel()) % len(magnitudes)].view(gate.shape), gate)
    return {"input": gate}


def _is_defined(case: Case) -> bool:
    """Returns whether the call has the dtypes of the public functions, and a tensor of two columns has two dims."""
    return case.cast is None and (not case.absent or len(case.shape) > 1)


GLU = OpCases(
    tensors=_tensors,
    is_defined=_is_defined,
    formulas={"sigmoid": lambda x: 1 / (1 + (-x).exp())},
)
