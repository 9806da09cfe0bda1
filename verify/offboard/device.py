"""Emulates two NPUs for torch, with the interface of torch_npu. All operations run on the CPU.

A tensor wraps a CPU tensor and reports the device "npu". torch's operations run on the CPU tensor, and kernels get its
address. All operations are synchronous, so a stream has a handle and a device, but no queue.
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
from torch.utils.weak import WeakIdKeyDictionary

NAME = "Ascend910B1"
DEVICES = 2
VECTOR_CORES = 48

_BACKEND = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_handles = itertools.count(0xA000)
_current = {"device": 0}
_GUARD, _FILLER = 1 << 16, 0x5A
_EMPTY = torch.ops.aten.new_empty, torch.ops.aten.new_empty_strided, torch.ops.aten.empty_like
_CLEAN = torch.full((_GUARD,), _FILLER, dtype=torch.uint8)
_guarded: Any = WeakIdKeyDictionary()
"""The memory of each tensor that was made empty. Around its elements are `_GUARD` bytes that hold `_FILLER`."""


class Stream:
    """A stream of one device."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self._open(index_of(device), next(_handles))

    def _open(self, index: int, handle: int) -> None:
        self.device = torch.device("npu", index)
        self.npu_stream = handle
        stream_devices[handle] = index

    def synchronize(self) -> None:
        """Does nothing, because all operations are synchronous."""

    def wait_stream(self, stream: Stream) -> None:
        """Does nothing, because all operations are synchronous."""


class ExternalStream(Stream):
    """A stream with a given handle, which was created elsewhere."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        self._open(index_of(device), stream_ptr)


stream_devices: dict[int, int] = {}
"""Device index of each stream, by the stream's handle."""
_streams: dict[int, Stream] = {}


def index_of(device: Any) -> int:
    """Returns the index of a device, given in any form that torch accepts. None means the current device."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return _current["device"] if index is None else index


def current_device() -> int:
    """Returns the index of the current device."""
    return _current["device"]


def current_stream(device: Any = None) -> Stream:
    """Returns the current stream of a device."""
    index = index_of(device)
    if index not in _streams:
        _streams[index] = Stream(index)
    return _streams[index]


@contextmanager
def use_device(device: Any) -> Iterator[None]:
    """Makes a device the current device in a `with` block."""
    previous = _current["device"]
    _current["device"] = index_of(device)
    try:
        yield
    finally:
        _current["device"] = previous


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Makes a stream the current stream, and its device the current device, in a `with` block."""
    index = stream.device.index
    previous = current_stream(index)
    _streams[index] = stream
    try:
        with use_device(index):
            yield
    finally:
        _streams[index] = previous


@dataclass(frozen=True)
class Properties:
    """The device properties that torch_npu reports."""

    name: str = NAME
    total_memory: int = 64 << 30
    cube_core_num: int = VECTOR_CORES // 2
    vector_core_num: int = VECTOR_CORES
    L2_cache_size: int = field(default=192 << 20)


class Tensor(torch.Tensor):
    """A tensor that reports the device "npu". A CPU tensor holds its data."""

    cpu_tensor: torch.Tensor

    @staticmethod
    def __new__(cls, cpu_tensor: torch.Tensor, device: torch.device) -> Tensor:
        """Wraps a CPU tensor, which must not have a wrapper yet."""
        strides, offset = cpu_tensor.stride(), cpu_tensor.storage_offset()
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, cpu_tensor.shape, strides, offset, dtype=cpu_tensor.dtype, device=device
        )
        wrapper.cpu_tensor = cpu_tensor
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def data_ptr(self) -> int:
        """Returns the address of the first element in the CPU's memory."""
        return self.cpu_tensor.data_ptr()

    def record_stream(self, stream: Any) -> None:
        """Does nothing, because all operations are synchronous."""

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.cpu_tensor!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = dict(kwargs or {})
        if func.namespace not in ("aten", "prims"):  # a custom op has its own implementation for this device
            return func.redispatch(_BACKEND, *args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        npu_tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        device = npu_tensors[0].device
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            kwargs["device"] = "cpu"
        elif func.overloadpacket is not torch.ops.aten.copy_:
            others = {str(t.device) for t in tensors if t.dim() and t.device != device}
            if others:
                raise RuntimeError(f"{func}: expected all tensors on {device}, found {', '.join(sorted(others))}")
        result = func(*pytree.tree_map(_unwrap, args), **pytree.tree_map(_unwrap, kwargs))
        if func.overloadpacket in _EMPTY and device.type == "npu":
            return _empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)
        # An in-place operation must return the wrapper of its argument.
        wrappers = {id(tensor.cpu_tensor): tensor for tensor in npu_tensors}

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or device.type != "npu":
                return leaf
            return wrappers[id(leaf)] if id(leaf) in wrappers else _on_npu(leaf, device)

        return pytree.tree_map(wrap, result)


def _unwrap(leaf: Any) -> Any:
    return leaf.cpu_tensor if isinstance(leaf, Tensor) else leaf


def _on_npu(cpu_tensor: torch.Tensor, device: Any) -> Tensor:
    return Tensor(cpu_tensor, torch.device("npu", index_of(device)))


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **unused: Any) -> Tensor:
    return _empty_strided(size, torch.empty(size, device="meta").stride(), dtype=dtype, device=device)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **unused: Any) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    elements = torch.empty_strided(size, stride, dtype=torch.uint8, device="meta").untyped_storage().nbytes()
    memory = torch.full((_GUARD + -(-elements * dtype.itemsize // 64) * 64 + _GUARD,), _FILLER, dtype=torch.uint8)
    found = _on_npu(memory.view(dtype).as_strided(size, stride, _GUARD // dtype.itemsize), device)
    _guarded[found] = memory
    return found


def written_outside() -> bool:
    """Returns whether the memory before or after a tensor that was made empty has changed."""
    ends = (end for memory in _guarded.values() for end in (memory[:_GUARD], memory[-_GUARD:]))
    return not all(torch.equal(end, _CLEAN) for end in ends)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _unwrap(target).copy_(_unwrap(source))
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
    """Registers the device type "npu" and the modules `torch.npu` and `torch_npu`. Call it once per process."""
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
