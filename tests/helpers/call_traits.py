"""The traits in which calls of an op differ: sizes, layouts, dtypes, classes, gradients, modes, settings.

What is kept of a call, such as a plan or a kernel, must not serve a call that differs in a trait that decides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

import tridal
from feature_axes import INPUTS, DispatchMode, FunctionMode
from op_samples import Sample, as_tuple, loss_of
from tridal.errors import DTypeError

Tensor = torch.Tensor
Tensors = dict[str, Tensor]


class Trait(NamedTuple):
    """What is different in a call: its shape, a change of floating-point tensors, or a context around it."""

    rows: int = 6
    more_columns: int = 0
    more_dims: tuple[int, ...] = ()
    """Dims before the rows."""
    change: Callable[[Tensor], Tensor] = torch.clone
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    grad: Callable[[int], bool] = lambda index: True
    """Tells for each differentiable tensor, by its index, whether it requires a gradient."""
    changes_first: bool = True
    """Whether `change` changes the first tensor, too."""


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def overlapping(x: Tensor) -> Tensor:
    """Rows that share memory, where the tensor has rows. The numbers change."""
    return x.flatten()[: sum(x.shape) - 1].clone().as_strided(x.shape, (1,) * x.dim()) if x.dim() > 1 else x.clone()


def of_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


@contextmanager
def inference_with_grad() -> Iterator[None]:
    with torch.inference_mode(), torch.enable_grad():
        yield


def strided(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else torch.stack((x, x), -1)[..., 0]


TRAITS = {
    "plain": Trait(),
    "other numbers": Trait(change=lambda x: x * 0.75),
    "another number of rows": Trait(7),
    "33 rows": Trait(33),
    "34 rows": Trait(34),
    "48 rows": Trait(48),
    "many rows": Trait(70),
    "three dims": Trait(3, more_dims=(2,)),
    "one row": Trait(1),
    "no rows": Trait(0),
    "one more column": Trait(more_columns=1),
    "16 more columns": Trait(more_columns=16),
    "strided": Trait(change=strided),
    "sliced": Trait(change=INPUTS["sliced"]),
    "unaligned": Trait(change=INPUTS["unaligned"]),
    "expanded": Trait(change=INPUTS["expanded"]),
    "overlapping": Trait(change=overlapping),
    "negative": Trait(change=INPUTS["negative"]),
    "float16": Trait(change=torch.Tensor.half),
    "bfloat16": Trait(change=torch.Tensor.bfloat16),
    "float64": Trait(change=torch.Tensor.double),
    "float16 except the first": Trait(change=torch.Tensor.half, changes_first=False),
    "unaligned except the first": Trait(change=INPUTS["unaligned"], changes_first=False),
    "strided except the first": Trait(change=strided, changes_first=False),
    "negative except the first": Trait(change=INPUTS["negative"], changes_first=False),
    "parameter": Trait(change=INPUTS["parameter"]),
    "subclass": Trait(change=INPUTS["subclass"]),
    "no gradient": Trait(grad=lambda index: False),
    "first gradient only": Trait(grad=lambda index: index == 0),
    "no first gradient": Trait(grad=lambda index: index > 0),
    "no_grad": Trait(context=torch.no_grad),
    "inference": Trait(context=torch.inference_mode, grad=lambda index: False),
    "gradients in inference": Trait(context=inference_with_grad, grad=lambda index: False),
    "tensors of inference": Trait(change=of_inference_mode, grad=lambda index: False),
    "tensors of inference except the first": Trait(
        change=of_inference_mode, changes_first=False, grad=lambda index: index == 0
    ),
    "autocast": Trait(context=lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast of bfloat16": Trait(change=torch.Tensor.bfloat16, context=lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast to float16": Trait(context=lambda: torch.autocast("cpu", torch.float16)),
    "function mode": Trait(context=FunctionMode),
    "dispatch mode": Trait(context=DispatchMode),
    "deterministic": Trait(context=deterministic),
    "batch invariant": Trait(context=lambda: tridal.use(batch_invariant=True)),
    "torch's kernels": Trait(context=lambda: tridal.use(device="auto")),
    "level of forward mode": Trait(context=torch.autograd.forward_ad.dual_level, grad=lambda index: False),
}


def tensors_of(sample: Sample, trait: Trait, columns: int) -> Tensors:
    """Returns the tensors of a call of an op. Calls with the same shape have the same numbers."""
    torch.manual_seed(0)
    shape = (*trait.more_dims, trait.rows, columns + trait.more_columns)
    tensors = sample.leaves(*shape, dtype=torch.float32)
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            changes = tensor.numel() and (trait.changes_first or name != "input")
            changed = trait.change(tensor.detach()) if changes else tensor.detach()
            index = sample.differentiable.index(name) if name in sample.differentiable else None
            tensors[name] = changed.requires_grad_(index is not None and trait.grad(index))
    return tensors


def results_of(function: Callable[..., Any], tensors: Tensors) -> list[Tensor]:
    """Returns results, and the gradients of tensors that require one. The mean of no rows is NaN, as its gradients."""
    results = as_tuple(function(**tensors))
    needed = [tensor for tensor in tensors.values() if tensor.requires_grad]
    assert results[0].requires_grad == (bool(needed) and torch.is_grad_enabled())
    differentiated = needed and results[0].requires_grad and not any(map(torch.Tensor.isnan, map(loss_of, results)))
    found = torch.autograd.grad(loss_of(results), needed) if differentiated else ()
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in needed[: len(found)]]
    return [result.detach().as_subclass(Tensor) for result in (*results, *found)]


def check_call(sample: Sample, trait: Trait, tensors: Tensors) -> None:
    """Makes a call of an op, and compares it with torch's ops in float64. An op may refuse a mixture of dtypes."""
    exact = {id(tensor): exact_copy(tensor) for tensor in tensors.values()}  # one tensor may be two arguments
    with trait.context(), tridal.record_calls() as records:
        try:
            found = results_of(sample.function, tensors)
        except DTypeError:
            assert not trait.changes_first
            return
        grad, narrow = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    with torch.set_grad_enabled(grad):
        expected = results_of(sample.expected, {name: exact[id(tensor)] for name, tensor in tensors.items()})
    assert len(found) == len(expected)
    if trait is TRAITS["torch's kernels"]:
        assert {record.backend for record in records} <= {"torch"}
    narrow |= any(tensor.is_floating_point() and tensor.dtype.itemsize == 2 for tensor in tensors.values())
    # The errors of gradients grow with the logits, which are among the results.
    largest = max((wanted.nan_to_num().abs().amax().item() for wanted in expected if wanted.numel()), default=0.0)
    error = (1e-1 if narrow else 1e-5) * max(largest, 1.0)
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted.double(), rtol=0, atol=error, equal_nan=True)


def exact_copy(tensor: Tensor) -> Tensor:
    """Returns a new contiguous tensor, in float64 if it is a floating-point tensor."""
    copy = tensor.detach().as_subclass(Tensor).resolve_neg().contiguous()
    return (copy.double() if copy.is_floating_point() else copy).clone().requires_grad_(tensor.requires_grad)
