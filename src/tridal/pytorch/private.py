"""All private API of PyTorch that tridal uses, each item with a fallback for versions that lack it.

A fallback is correct and may be slower: where the answer to a question is not known, the call goes through PyTorch's
dispatcher or through the op's reference. `tests/test_private.py` removes each item of `ITEMS` and checks that.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

ITEMS: list[str] = []
"""Paths of the items that were looked up. This happens when this module or the DTensor rules are imported."""
MISSING: list[str] = []
"""Those of `ITEMS` that this version of PyTorch does not have."""


def _item(path: str, fallback: Any = None) -> Any:
    """The attribute with that path, or the fallback."""
    ITEMS.append(path)
    owner, _, name = path.rpartition(".")
    try:
        return getattr(pkgutil.resolve_name(owner), name)
    except (ImportError, AttributeError):
        MISSING.append(path)
        return fallback


def _always(value: Any) -> Callable[..., Any]:
    """A function that returns `value` for any arguments."""
    return lambda *_: value


function_modes: Callable[[], int] = _item("torch._C._len_torch_function_stack", _always(1))
"""Number of active modes with `__torch_function__`."""
dispatch_modes: Callable[[], int] = _item("torch._C._len_torch_dispatch_stack", _always(1))
"""Number of active modes with `__torch_dispatch__`."""
transforms_active: Callable[[], bool] = _item("torch._C._are_functorch_transforms_active", _always(True))
"""Whether a transform of torch.func is active."""
tracing_state: Callable[[], Any] = _item("torch._C._get_tracing_state", _always(object()))
"""The state of torch.jit.trace; None if it is not active."""
is_batched_gradient: Callable[[Any], bool] = _item("torch._C._functorch.is_legacy_batchedtensor", _always(True))
"""Whether `torch.autograd.grad(is_grads_batched=True)` computes this gradient, which uses a vmap of its own."""

_has_forward_ad_level = _item("torch.autograd.forward_ad._current_level") is not None


def forward_ad_level() -> int:
    """The level of forward-mode AD; -1 if it is not active, 0 if that is not known."""
    return forward_ad._current_level if _has_forward_ad_level else 0


def needs_dispatcher() -> bool:
    """Whether a transform, a mode or a tracer is active, which has to see the op in PyTorch's dispatcher."""
    return transforms_active() or dispatch_modes() != 0 or forward_ad_level() >= 0 or tracing_state() is not None


# Guards and allocators of code that torch.compile generated.

GUARDS = _item("torch._C._dynamo.guards")
_TensorGuards = _item("torch._C._dynamo.guards.TensorGuards")


@functools.cache
def allocator(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """make(shape, strides, dtype) on the current device, in half the time; None if torch has none for that device."""
    make: Any = getattr(GUARDS, f"_empty_strided_{device.type}", None)
    try:
        made = make((2, 3), (3, 1), torch.float32)
    except Exception:
        return None
    as_requested = made.shape == (2, 3) and made.stride() == (3, 1) and made.dtype is torch.float32
    return make if as_requested and made.device == device else None


def tensor_guards(input: torch.Tensor) -> Callable[[Any], bool] | None:
    """check(tensor): whether shape, strides, dtype, device, requires_grad and dispatch keys equal the input's.

    None if this torch does not have it. The check crashes on nested tensors, in transforms, and on other layouts.
    """
    try:
        guards = _TensorGuards(input, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        check: Callable[[Any], bool] = guards.check
        return check if check(input) and not check(None) else None
    except Exception:
        return None


# Nodes of the autograd graph.

SingleLevelFunction: Any = _item("torch.autograd.function._SingleLevelFunction", torch.autograd.Function)
"""torch.autograd.Function without its support for transforms."""
below_autograd: Any = _item("torch._C._AutoDispatchBelowAutograd")
"""A context in which ops are dispatched below autograd."""
_single_level: Any = _item("torch._functorch.utils.enable_single_level_autograd_function")
_set_forward_ad: Any = _item("torch.autograd.forward_ad._set_fwd_grad_enabled")
_forward_ad_enabled: Any = _item("torch._C._is_fwd_grad_enabled")

HAS_NODES = SingleLevelFunction is not torch.autograd.Function and (
    None not in (below_autograd, _single_level, _set_forward_ad, _forward_ad_enabled)
)
"""Whether nodes of the autograd graph can be made below the transforms of torch.func."""


def apply_node(node: Any, *args: Any) -> Any:
    """`node.apply(redispatch, *args)` for the transform that requested it, or for none. Needs `HAS_NODES`.

    `apply` disables gradients and forward mode, which the layers below would take for the user's choice. `redispatch`
    is a context below autograd that restores both.
    """
    grad, forward_grad = torch.is_grad_enabled(), _forward_ad_enabled()

    @contextmanager
    def redispatch() -> Iterator[None]:
        with below_autograd(), torch.set_grad_enabled(grad), _set_forward_ad(forward_grad):
            yield

    with _single_level():
        return node.apply(redispatch, *args)


# Collectives and compiled code. These are looked up on first use, because they import much.


@functools.cache
def mesh_all_reduce() -> Callable[[torch.Tensor, str, Any, int], torch.Tensor]:
    """all_reduce(tensor, "max" or "sum", mesh, axis) over one dim of a mesh. The fallback cannot be compiled."""
    reduce = _item("torch.distributed._functional_collectives.all_reduce")
    wait = _item("torch.distributed._functional_collectives.wait_tensor")
    if reduce is not None and wait is not None:
        return lambda tensor, how, mesh, axis: wait(reduce(tensor, how, (mesh, axis)))

    def all_reduce(tensor: torch.Tensor, how: str, mesh: Any, axis: int) -> torch.Tensor:
        reduced = tensor.clone(memory_format=torch.contiguous_format)
        operation = getattr(torch.distributed.ReduceOp, how.upper())
        torch.distributed.all_reduce(reduced, operation, group=mesh.get_group(axis))
        return reduced

    return all_reduce


def repeatable_backward() -> AbstractContextManager[Any]:
    """A context in which torch.compile compiles a backward that can run repeatedly. Versions without it need none."""
    from torch._functorch import config

    return config.patch(donated_buffer=False) if hasattr(config, "donated_buffer") else nullcontext()
