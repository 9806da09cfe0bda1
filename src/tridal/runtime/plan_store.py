"""Stores plans in a folder of Triton's cache, so that no process compiles the candidates of a plan a second time.

A file has one plan. Its name is a digest of everything that decides the plan: the problem with its rounded numbers of
rows, the kernel, the device, the options, the versions, and the sources of the schedules, of the op's functions and of
the backend. The store never raises an error: without a usable file, the backend plans.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tridal.devices.entry_points import IN_CODE, is_bundled
from tridal.devices.lock import LOCK
from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Probe, Resources
from tridal.kernels.op_functions import fingerprint
from tridal.runtime import compiler, triton_cache
from tridal.runtime.specialization import KernelCall

FOLDER = "tridal"
"""The folder in Triton's cache."""
_SOURCES = ("tridal.devices", "tridal.runtime", "tridal.kernels")
"""Packages that decide how a kernel is compiled and how numbers of rows are rounded."""
_CONFIG = KernelConfig("whole_row", 1, 1, peel=True)
"""A configuration for which the specialization of a call has everything that plans and compiled kernels depend on."""

_log = logging.getLogger("tridal")


def contents() -> tuple[Path, int]:
    """Returns the folder of the store, which is created if it does not exist, and the number of files with plans.

    Raises PlanError if the folder cannot be written.
    """
    folder = Path(triton_cache.folder(), FOLDER)
    triton_cache.check(folder)
    return folder, sum(1 for _ in folder.glob("*.json"))


def _files() -> Any:
    from triton.runtime.cache import FileCacheManager

    return FileCacheManager(FOLDER)


class PlanFile:
    """The stored plan of a call."""

    def __init__(
        self, call: KernelCall, backend: Backend, device: DeviceProperties, options: Mapping[str, Any]
    ) -> None:
        self._name = None
        # A backend that is registered in code, for example for a test, can plan differently each time.
        if backend.interpreted or device.target is None or getattr(backend, "origin", IN_CODE) == IN_CODE:
            return
        try:
            with LOCK:
                self._name = f"{_key(call, backend, device, options)}.json"
        except Exception as error:  # for example, a compiler of a plugin that cannot be asked for its version
            _log.debug("plans of %s are not stored: %s", call.kernel.name, error)

    def find(self, check: Callable[[LaunchPlan, Probe], None]) -> LaunchPlan | None:
        """Returns the stored plan, or None.

        check(plan, probe) raises an error if a plan is wrong. The probe returns the stored resources of the plan.
        """
        try:
            fields = self._read()
            if fields is not None:
                config, resources = KernelConfig(**fields["config"]), Resources(**fields["resources"])
                plan = LaunchPlan(**{**fields, "config": config, "resources": resources, "compilations": 0})
                check(plan, lambda config: resources)
                return plan
        except Exception as error:  # of the content of the file
            _log.debug("a stored plan is ignored: %s: %s", self._name, error)
        return None

    def keep(self, plan: LaunchPlan) -> None:
        """Stores a plan if candidates were compiled for it."""
        if self._name is None or not plan.compilations or plan.resources is None:
            return
        text = json.dumps(asdict(replace(plan, reason=f"{plan.reason} (stored)")))
        try:
            _files().put(f"{_digest(text)}\n{text}", self._name)  # writes another file, and renames it
        except OSError as error:
            _log.debug("a plan is not stored: %s", error)

    def _read(self) -> Any:
        """Returns the fields of the plan, or None if there is no file. Raises an error if the file is damaged."""
        found = None if self._name is None else _files().get_file(self._name)
        if found is None:
            return None
        digest, _, text = Path(found).read_text().partition("\n")
        if digest != _digest(text):
            raise ValueError("the file is damaged")
        return json.loads(text)


def _key(call: KernelCall, backend: Backend, device: DeviceProperties, options: Mapping[str, Any]) -> str:
    code = _code(backend, device.target)
    specialized = type(call).__name__, call.specialize(_CONFIG), fingerprint(call.kernel)
    offset_bits = max(map(max, call.layout.groups)).bit_length()  # offsets in a large tile can have 64 bits
    return _digest(repr((code, device, sorted(options.items()), call.problem, specialized, offset_bits)))


@functools.lru_cache(maxsize=64)
def _code(backend: Any, target: Any) -> str:
    """Returns a digest of what plans and compiles for a target: versions, and the files of tridal and the backend."""
    triton = compiler.import_triton()
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    digest = hashlib.sha256()
    for name, path in sorted(_files_of(backend)):
        digest.update(name.encode() + path.read_bytes())
    compiling = make_backend(GPUTarget(*target)).hash(), sorted(get_cache_invalidating_env_vars().items())
    versions = sys.modules["tridal"].__version__, triton.__version__, backend.name, backend.origin
    return _digest(repr((versions, compiling, digest.hexdigest())))


def _files_of(backend: Any) -> Iterator[tuple[str, Path]]:
    """Yields the names and the paths of the files that decide plans, data files included, without compiled Python.

    They are those of tridal's own packages, of the packages of the backend's module, of its class, of the base classes
    and of `plan` and `resources`, and all files of its distribution.
    """
    plugin = backend.plugin
    parts = [plugin] if isinstance(plugin, ModuleType) else type(plugin).__mro__
    names = {getattr(part, "__module__", None) or part.__name__ for part in (*parts, plugin.plan, plugin.resources)}
    modules = [sys.modules[name] for name in names - {"builtins", "typing"}]
    for name in {*_SOURCES, *(module.__package__ or module.__name__ for module in modules)}:
        package = importlib.import_module(name)
        folders = [Path(path) for path in getattr(package, "__path__", ())]
        for folder in folders:
            yield from ((f"{name}/{path.relative_to(folder)}", path) for path in folder.rglob("*") if _is_source(path))
        if not folders:
            yield name, Path(str(package.__file__))
    with suppress(metadata.PackageNotFoundError):
        files = [] if is_bundled(backend.origin) else metadata.files(backend.origin.partition(" ")[0]) or []
        yield from ((str(file), path) for file in files if _is_source(path := Path(str(file.locate()))))


def _is_source(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.is_file()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
