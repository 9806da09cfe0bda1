"""An npu device for torch that computes on this machine's processor: two NPUs with streams, as torch_npu shows them.

A tensor is a wrapper that says "npu" around a twin that lies in the processor's memory. Every operation of torch is the
twin's; a kernel gets the twin's address. Nothing runs late, so a stream has a handle and an owner and no queue.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "Ascend910B1"
DEVICES = 2
VECTOR_CORES = 48

_BACKEND = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_handles = itertools.count(0xA000)
_current = {"device": 0}


class Stream:
    """A stream of one device."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self._open(index_of(device), next(_handles))

    def _open(self, index: int, handle: int) -> None:
        self.device = torch.device("npu", index)
        self.npu_stream = handle
        owners[handle] = index

    def synchronize(self) -> None:
        """Nothing is ever late."""

    def wait_stream(self, stream: Stream) -> None:
        """Nothing is ever late."""


class ExternalStream(Stream):
    """A stream that somebody else made, by its handle."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        self._open(index_of(device), stream_ptr)


owners: dict[int, int] = {}
"""Index of the device that a stream belongs to, by handle."""
_streams: dict[int, Stream] = {}


def index_of(device: Any) -> int:
    """Index of a device in any form that torch takes; None is the current one."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return _current["device"] if index is None else index


def current_device() -> int:
    """Index of the current device."""
    return _current["device"]


def current_stream(device: Any = None) -> Stream:
    """The current stream of a device."""
    index = index_of(device)
    if index not in _streams:
        _streams[index] = Stream(index)
    return _streams[index]


@contextmanager
def use_device(device: Any) -> Iterator[None]:
    """Makes a device the current one."""
    before = _current["device"]
    _current["device"] = index_of(device)
    try:
        yield
    finally:
        _current["device"] = before


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Makes a stream its device's current one, and that device the current one."""
    index = stream.device.index
    before = current_stream(index)
    _streams[index] = stream
    try:
        with use_device(index):
            yield
    finally:
        _streams[index] = before


@dataclass(frozen=True)
class Properties:
    """What torch_npu says of a device."""

    name: str = NAME
    total_memory: int = 64 << 30
    cube_core_num: int = VECTOR_CORES // 2
    vector_core_num: int = VECTOR_CORES
    L2_cache_size: int = field(default=192 << 20)


class Tensor(torch.Tensor):
    """Says that it is on an npu; its twin holds the data."""

    twin: torch.Tensor

    @staticmethod
    def __new__(cls, twin: torch.Tensor, device: torch.device) -> Tensor:
        """Wraps a twin that nothing else wraps."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, twin.shape, twin.stride(), twin.storage_offset(), dtype=twin.dtype, device=device
        )
        made.twin = twin
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def data_ptr(self) -> int:
        """Address of the twin's first element."""
        return self.twin.data_ptr()

    def record_stream(self, stream: Any) -> None:
        """Memory is never given back early."""

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.twin!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = dict(kwargs or {})
        if func.namespace not in ("aten", "prims"):  # somebody's own op: what it does on this device is its own affair
            return func.redispatch(_BACKEND, *args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        device = ours[0].device
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            kwargs["device"] = "cpu"
        elif func.overloadpacket is not torch.ops.aten.copy_:
            strange = {str(t.device) for t in tensors if t.dim() and t.device != device}
            if strange:
                raise RuntimeError(f"{func}: expected all tensors on {device}, found {', '.join(sorted(strange))}")
        result = func(*pytree.tree_map(_twin, args), **pytree.tree_map(_twin, kwargs))
        known = {id(tensor.twin): tensor for tensor in ours}  # what an operation in place returns is its argument

        def wrapped(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or device.type != "npu":
                return leaf
            return known[id(leaf)] if id(leaf) in known else _on_npu(leaf, device)

        return pytree.tree_map(wrapped, result)


def _twin(leaf: Any) -> Any:
    return leaf.twin if isinstance(leaf, Tensor) else leaf


def _on_npu(twin: torch.Tensor, device: Any) -> Tensor:
    return Tensor(twin, torch.device("npu", index_of(device)))


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **unused: Any) -> Tensor:
    return _on_npu(torch.empty(size, dtype=dtype or torch.get_default_dtype()), device)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **unused: Any) -> Tensor:
    return _on_npu(torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype()), device)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _twin(target).copy_(_twin(source))
    return target


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def install() -> None:
    """Registers the device with torch, and modules `torch.npu` and `torch_npu` with what is used of them. Once."""
    npu = types.ModuleType("torch.npu")
    npu.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: DEVICES,
        current_device=current_device,
        set_device=lambda device: _current.update(device=index_of(device)),
        device=use_device,
        get_device_properties=lambda device=None: Properties(),
        Stream=Stream,
        ExternalStream=ExternalStream,
        stream=use_stream,
        current_stream=current_stream,
        synchronize=lambda device=None: None,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    )
    _setup_privateuseone_for_python_backend("npu", backend_module=npu, hook=_Hooks(), device_guard=_Guard())
    for name, function in (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("_copy_from", _copy_from),
    ):
        _library.impl(name, function, "PrivateUse1")
    for name in ("torch_npu", "torch_npu._C"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules["torch_npu._C"].__dict__["_npu_getCurrentRawStream"] = lambda index: current_stream(index).npu_stream


_library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
