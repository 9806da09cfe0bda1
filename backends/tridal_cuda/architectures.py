"""One GPU of each compute capability, for plans on machines without that GPU.

Sources: the limits of a multiprocessor are from the table "Technical Specifications per Compute Capability" of NVIDIA's
CUDA C++ Programming Guide. The number of multiprocessors, the L2 cache and the memory are from the GPU's data sheet.
"""

from __future__ import annotations

from collections.abc import Mapping

from tridal.devices.types import DeviceProperties

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def _gpu(
    capability: int, name: str, cores: int, shared_kib: int, threads: int, programs: int, l2_mib: int, gib: int
) -> DeviceProperties:
    return DeviceProperties(
        name=name,
        arch=f"sm_{capability}",
        cores=cores,
        core_name="SM",
        target=("cuda", capability, 32),
        warp_size=32,
        registers=65536,
        shared_memory=shared_kib * _KIB,
        max_threads=threads,
        max_programs=programs,
        l2_cache=l2_mib * _MIB,
        memory=gib * _GIB,
    )


_GPUS = (
    _gpu(90, "NVIDIA H100 SXM", cores=132, shared_kib=227, threads=2048, programs=32, l2_mib=50, gib=80),
    _gpu(75, "NVIDIA T4", cores=40, shared_kib=64, threads=1024, programs=16, l2_mib=4, gib=16),
    _gpu(80, "NVIDIA A100 SXM", cores=108, shared_kib=163, threads=2048, programs=32, l2_mib=40, gib=80),
    _gpu(86, "NVIDIA A10", cores=72, shared_kib=99, threads=1536, programs=16, l2_mib=6, gib=24),
    _gpu(89, "NVIDIA L4", cores=58, shared_kib=99, threads=1536, programs=24, l2_mib=48, gib=24),
    _gpu(100, "NVIDIA B200", cores=148, shared_kib=227, threads=2048, programs=32, l2_mib=126, gib=180),
    _gpu(120, "NVIDIA GeForce RTX 5090", cores=170, shared_kib=99, threads=1536, programs=32, l2_mib=96, gib=32),
)

ARCHITECTURES: Mapping[str, DeviceProperties] = {gpu.arch: gpu for gpu in _GPUS}
"""By nvcc's name of the compute capability. The first entry is the default where one architecture is needed."""
