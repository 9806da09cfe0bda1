"""Builds SPIR-V with an OpenCL runtime for CPUs and executes it on the memory of this process, by ctypes."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXTENSION, EXECUTION_MODE, CAPABILITY = 10, 16, 17
"""Operations of SPIR-V."""
_CPU = 2  # CL_DEVICE_TYPE_CPU
_FOR_GPUS = {5892}
"""Capabilities that a runtime for CPUs does not know: KernelAttributesINTEL."""
_MODES_FOR_GPUS = {5893}
"""Execution modes that need them: MaxWorkgroupSizeINTEL."""
_SCALARS: dict[str, Any] = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}  # fmt: skip


def library() -> Path:
    """Returns the path of the runtime that the package intel-opencl-rt installs."""
    return Path(sys.prefix, "lib", "libintelocl.so")


def instructions(spirv: bytes) -> Iterator[tuple[int, ...]]:
    """Yields the words of each instruction of a SPIR-V module, after the five words of its header."""
    words, start = struct.unpack(f"<{len(spirv) // 4}I", spirv), 5
    while start < len(words):
        end = start + (words[start] >> 16)
        yield words[start:end]
        start = end


def portable(spirv: bytes) -> bytes:
    """Returns a SPIR-V module without the declarations that are for GPUs only."""
    return spirv[:20] + b"".join(
        struct.pack(f"<{len(words)}I", *words) for words in instructions(spirv) if not _is_for_gpus(words)
    )


def _is_for_gpus(words: tuple[int, ...]) -> bool:
    operation = words[0] & 0xFFFF
    if operation == EXTENSION:
        return b"SPV_INTEL_kernel_attributes" in struct.pack(f"<{len(words)}I", *words)
    is_capability = operation == CAPABILITY and words[1] in _FOR_GPUS
    return is_capability or (operation == EXECUTION_MODE and words[2] in _MODES_FOR_GPUS)


@dataclass(frozen=True)
class Device:
    """The CPU as an OpenCL device."""

    cl: Any
    device: ctypes.c_void_p
    context: ctypes.c_void_p
    queue: ctypes.c_void_p


@functools.cache
def device() -> Device:
    """Opens the CPU.

    Raises:
        OSError: the runtime is not installed.
        RuntimeError: the runtime has no device.
    """
    cl = ctypes.CDLL(str(library()))
    for name in ("clCreateContext", "clCreateCommandQueueWithProperties", "clCreateProgramWithIL", "clCreateKernel"):
        getattr(cl, name).restype = ctypes.c_void_p
    cl.clGetExtensionFunctionAddress.restype = ctypes.c_void_p
    address = cl.clGetExtensionFunctionAddress(b"clIcdGetPlatformIDsKHR")
    platforms = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)(address)
    platform, found, error = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    _check(platforms(1, ctypes.byref(platform), None), "clIcdGetPlatformIDsKHR")
    _check(cl.clGetDeviceIDs(platform, ctypes.c_uint64(_CPU), 1, ctypes.byref(found), None), "clGetDeviceIDs")
    context = ctypes.c_void_p(cl.clCreateContext(None, 1, ctypes.byref(found), None, None, ctypes.byref(error)))
    _check(error.value, "clCreateContext")
    queue = ctypes.c_void_p(cl.clCreateCommandQueueWithProperties(context, found, None, ctypes.byref(error)))
    _check(error.value, "clCreateCommandQueueWithProperties")
    return Device(cl, found, context, queue)


class Kernel:
    """A kernel that is built for the CPU. Executes a launch at a time, and waits for its end."""

    def __init__(self, name: str, spirv: bytes) -> None:
        cl, error, module = device().cl, ctypes.c_int(), portable(spirv)
        arguments = device().context, module, ctypes.c_size_t(len(module)), ctypes.byref(error)
        program = ctypes.c_void_p(cl.clCreateProgramWithIL(*arguments))
        _check(error.value, "clCreateProgramWithIL")
        if (status := cl.clBuildProgram(program, 1, ctypes.byref(device().device), b"", None, None)) != 0:
            log = ctypes.create_string_buffer(4000)
            cl.clGetProgramBuildInfo(program, device().device, 0x1183, ctypes.c_size_t(4000), log, None)
            raise RuntimeError(f"{name}: clBuildProgram failed with {status}: {log.value.decode(errors='replace')}")
        self._kernel = ctypes.c_void_p(cl.clCreateKernel(program, name.encode(), ctypes.byref(error)))
        _check(error.value, "clCreateKernel")
        self.name = name

    def __call__(
        self, programs: int, work_items: int, local_memory: int, types: Sequence[str], values: Sequence[int | float]
    ) -> None:
        """Executes `programs` work-groups of `work_items`. A pointer, whose type begins with "*", is an address."""
        cl, kernel = device().cl, self._kernel
        for index, (kind, value) in enumerate(zip(types, values, strict=True)):
            if kind.startswith("*"):
                status = cl.clSetKernelArgSVMPointer(kernel, index, ctypes.c_void_p(int(value)))
            else:
                scalar = _SCALARS[kind](value)
                status = cl.clSetKernelArg(kernel, index, ctypes.c_size_t(ctypes.sizeof(scalar)), ctypes.byref(scalar))
            _check(status, f"{self.name}: argument {index}")
        if local_memory:
            _check(cl.clSetKernelArg(kernel, len(types), ctypes.c_size_t(local_memory), None), "local memory")
        size, group = ctypes.c_size_t(programs * work_items), ctypes.c_size_t(work_items)
        queue, by = device().queue, ctypes.byref
        _check(cl.clEnqueueNDRangeKernel(queue, kernel, 1, None, by(size), by(group), 0, None, None), self.name)
        _check(cl.clFinish(queue), self.name)


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} failed with the OpenCL error {status}")
