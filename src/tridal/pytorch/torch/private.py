"""The private APIs of PyTorch that tridal uses. Each API has a fallback for versions of PyTorch without it.

A fallback is correct but may be slower. If a state is unknown, the call goes through PyTorch's dispatcher or through
the op's reference. `tests/pytorch/test_private.py` removes each item of `ITEMS` and checks the results.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])

ITEMS: list[str] = []
"""The paths that `_item` looked up. This module and the DTensor rules look them up when they are imported."""
MISSING: list[str] = []
"""The paths of `ITEMS` that this version of PyTorch does not have."""


def _item(path: str, fallback: Any = None) -> Any:
    """Looks up an attribute by its path; if it does not exist, returns the fallback."""
    ITEMS.append(path)
    owner, _, name = path.rpartition(".")
    try:
        return getattr(pkgutil.resolve_name(owner), name)
    except (ImportError, AttributeError):
        MISSING.append(path)
        return fallback


def _always(value: Any) -> Callable[..., Any]:
    """Returns a function that returns `value` for all arguments."""
    return lambda *_: value


function_modes: Callable[[], int] = _item("torch._C._len_torch_function_stack", _always(1))
"""Returns the number of active modes with `__torch_function__`."""
dispatch_modes: Callable[[], int] = _item("torch._C._len_torch_dispatch_stack", _always(1))
"""Returns the number of active modes with `__torch_dispatch__`."""
transforms_active: Callable[[], bool] = _item("torch._C._are_functorch_transforms_active", _always(True))
"""Returns whether a transform of torch.func is active."""
any_autocast: Callable[[], bool] = _item("torch._C._is_any_autocast_enabled", _always(True))
"""Returns whether autocast is enabled for any device type."""
tracing_state: Callable[[], Any] = _item("torch._C._get_tracing_state", _always(object()))
"""Returns the state of torch.jit.trace, or None if it is not active."""
is_batched_gradient: Callable[[Any], bool] = _item("torch._C._functorch.is_legacy_batchedtensor", _always(True))
"""Returns whether a gradient is batched by the legacy vmap of `torch.autograd.grad(is_grads_batched=True)`."""

keeps_graph: Callable[[], bool] = _item("torch._C._autograd._get_current_graph_task_keep_graph", _always(True))
"""Returns whether the backward that runs keeps the graph, so that it may run again (`retain_graph=True`)."""

_saved_tensor_hooks = _item("torch._C._autograd._top_saved_tensors_default_hooks", _always(True))


def saves_through_hooks() -> bool:
    """Returns whether hooks of `torch.autograd.graph.saved_tensors_hooks` get the tensors that a node saves now."""
    return _saved_tensor_hooks(True) is not None


FORWARD_AD: Any = forward_ad
"""Its attribute `_current_level` is the level of forward-mode AD: -1 if it is not active, 0 if the level is unknown."""
if _item("torch.autograd.forward_ad._current_level") is None:
    FORWARD_AD = SimpleNamespace(_current_level=0)


def forward_ad_level() -> int:
    """Returns the level of forward-mode AD: -1 if it is not active, 0 if the level is unknown."""
    return FORWARD_AD._current_level  # type: ignore[no-any-return]


def needs_dispatcher() -> bool:
    """Returns whether a transform, a mode or a tracer is active. These need the op in PyTorch's dispatcher."""
    return transforms_active() or dispatch_modes() != 0 or forward_ad_level() >= 0 or tracing_state() is not None


_get_mode = _item("torch._C._get_dispatch_mode")
_ModeKey = _item("torch._C._TorchDispatchModeKey")


def traces() -> bool:
    """Returns whether a mode traces the ops of this thread, or computes them without values. Other modes observe them.

    If the modes are unknown, each one may trace.
    """
    if None in (_get_mode, _ModeKey):
        return dispatch_modes() != 0
    return any(_get_mode(key) is not None for key in (_ModeKey.FAKE, _ModeKey.FUNCTIONAL, _ModeKey.PROXY))


_UNKNOWN_HOOK = {0: None}
GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    _item("torch.nn.modules.module._global_forward_hooks", _UNKNOWN_HOOK),
    _item("torch.nn.modules.module._global_forward_pre_hooks", _UNKNOWN_HOOK),
    _item("torch.nn.modules.module._global_backward_hooks", _UNKNOWN_HOOK),
    _item("torch.nn.modules.module._global_backward_pre_hooks", _UNKNOWN_HOOK),
)
"""The hooks of all modules. The fallback is one hook that may do anything."""

_has_kernel = _item("torch._C._dispatch_has_kernel_for_dispatch_key")
_dispatch_key = _item("torch._C._dispatch_key_for_device")


def constant_in_graphs(function: Function) -> Function:
    """Marks a function whose result torch.compile treats as a constant.

    It does what torch.compiler.assume_constant_result does, but that imports dynamo, which is slow.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def autocasts(op: str, device_type: str) -> bool:
    """Returns whether autocast has a rule for an ATen op on a device type. The fallback: on all types but the CPU."""
    if None in (_has_kernel, _dispatch_key):
        return device_type != "cpu"
    return bool(_has_kernel(f"aten::{op}", f"Autocast{_dispatch_key(device_type)}"))


def has_kernel(op: str, device_type: str) -> bool:
    """Returns whether torch has a kernel of an ATen op for a device type. The fallback: it has."""
    return None in (_has_kernel, _dispatch_key) or bool(_has_kernel(f"aten::{op}", _dispatch_key(device_type)))


def autocast_enabled(device_type: str) -> bool:
    """Returns whether autocast is enabled for a device type. torch raises an error for meta tensors."""
    return device_type != "meta" and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """A context that disables autocast for a device type."""
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)


# Guards and allocators that the code generated by torch.compile uses.

GUARDS = _item("torch._C._dynamo.guards")


@functools.cache
def allocator(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """Returns make(shape, strides, dtype) for the current device, or None. It is faster than torch.empty."""
    make: Any = getattr(GUARDS, f"_empty_strided_{device.type}", None)
    try:
        made = make((2, 3), (3, 1), torch.float32)
    except Exception:
        return None
    as_requested = made.shape == (2, 3) and made.stride() == (3, 1) and made.dtype is torch.float32
    return make if as_requested and made.device == device else None


# Frames that torch.compile evaluates.

_set_strategy = _item("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_Strategy = _item("torch._C._dynamo.eval_frame._FrameExecStrategy")
_Action = _item("torch._C._dynamo.eval_frame._FrameAction")

SKIPS_FRAMES = None not in (_set_strategy, _Strategy, _Action)
"""Whether this version of PyTorch has the private APIs that `skip_frames` needs."""


def skip_frames(function: Function, inlined: bool = False) -> Function:
    """Returns the function. torch.compile runs it, and all functions that it calls, as Python does.

    torch.compile traces every frame that starts while a compiled function runs: the backward of an autograd node, and
    the kernels of registered ops. The mark belongs to the code of the function and costs nothing per call. A traced
    function still inlines it. Functions that have to be `inlined` have no fallback, because the fallback takes 1 us per
    call, and a traced function does not inline it.
    """
    if SKIPS_FRAMES:
        _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP))
    if SKIPS_FRAMES or inlined:
        return function
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:  # its import is slow
                return function(*args)
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled(*args)

    return call  # type: ignore[return-value]


# Nodes of the autograd graph.

SingleLevelFunction: Any = _item("torch.autograd.function._SingleLevelFunction", torch.autograd.Function)
"""The base class of torch.autograd.Function, without support for torch.func transforms."""


class Node(SingleLevelFunction):  # type: ignore[misc]
    """The base class of tridal's autograd nodes. Unlike `SingleLevelFunction`, it supports compiled autograd."""

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:
        """Returns what identifies the code of the backward in compiled autograd, as torch.autograd.Function does."""
        return (ctx._autograd_function_id,)


below_autograd: Any = _item("torch._C._AutoDispatchBelowAutograd")
"""A context in which ops are dispatched below autograd."""
single_level: Any = _item("torch._functorch.utils.enable_single_level_autograd_function")
"""A context in which a node is applied at the level of the current transform."""
_set_forward_ad: Any = _item("torch.autograd.forward_ad._set_fwd_grad_enabled")
_forward_ad_enabled: Any = _item("torch._C._is_fwd_grad_enabled")

HAS_NODES = SingleLevelFunction is not torch.autograd.Function and (
    None not in (below_autograd, single_level, _set_forward_ad, _forward_ad_enabled)
)
"""Whether this version of PyTorch has the private APIs that `redispatched` needs."""


def redispatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that a node calls in its forward at the level of the current transform. Needs `HAS_NODES`.

    A node disables gradients and forward-mode AD, so outer transforms would not differentiate the op. The function
    restores both, and dispatches below autograd.
    """
    grad, forward_grad = torch.is_grad_enabled(), _forward_ad_enabled()

    def call(*args: Any) -> Any:
        with below_autograd(), torch.set_grad_enabled(grad), _set_forward_ad(forward_grad):
            return function(*args)

    return call


def spec_and_shard(tensor: Any) -> tuple[Any, torch.Tensor] | None:
    """Returns the spec of a DTensor and its shard, or None if this version of torch has other attributes."""
    try:
        return tensor._spec, tensor._local_tensor
    except AttributeError:
        return None


def all_reduce(tensor: torch.Tensor, how: str, group: str) -> torch.Tensor:
    """Returns the maximum ("max") or the sum ("sum") of a tensor over the process group with this name.

    DTensor uses these ops, so they exist if it does. torch's functions around them take 49 instead of 10 us.
    """
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(tensor, how, group))  # type: ignore[no-any-return]


def all_gather(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Returns the tensors of all ranks of a process group, joined along the first dim."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_gather_into_tensor(tensor, ranks, group))  # type: ignore[no-any-return]


def repeatable_backward() -> AbstractContextManager[Any]:
    """Returns a context in which torch.compile does not donate buffers, so that a backward can run repeatedly."""
    from torch._functorch import config

    return config.patch(donated_buffer=False) if hasattr(config, "donated_buffer") else nullcontext()
