"""Compiles linalg IR to machine code with the tools of MLIR and LLVM, and executes a grid program by program.

triton-ascend adds two memrefs before the parameters of a kernel, for locks and a workspace. It adds six integers after
them, for the sizes of the grid and the program's position in it. A memref is passed as five values: allocated pointer,
aligned pointer, offset, size and stride. Kernels read the aligned pointer only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LLVM_VERSION = 19
_PASSES = (
    "--convert-elementwise-to-linalg",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--convert-linalg-to-loops",
    "--convert-scf-to-cf",
    "--expand-strided-metadata",
    "--memref-expand",
    "--lower-affine",
    "--arith-expand=include-bf16=true",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--convert-arith-to-llvm",
    "--finalize-memref-to-llvm=use-generic-functions=true",
    "--convert-cf-to-llvm",
    "--convert-func-to-llvm",
    "--convert-index-to-llvm",
    "--reconcile-unrealized-casts",
)
_LLVM_OPTIONS = ("-O1",)
_HEADER = re.compile(r"func\.func @(\w+)\((.*?)\) attributes", re.DOTALL)
_PARAMETER = re.compile(r"%arg\d+: (memref<[^>]*>|\w+)")
_ADDED_BEFORE, _ADDED_AFTER = ["memref<?xi8>"] * 2, ["i32"] * 6
_INTEGERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is compiled to machine code."""

    name: str
    parameters: tuple[str, ...]
    """MLIR types of the parameters (memref, i32, i64 or f32), without those that triton-ascend adds."""
    _function: Callable[..., None] = field(repr=False)

    def __call__(self, grid: tuple[int, int, int], arguments: Sequence[int | float]) -> None:
        """Executes the programs of a grid one after the other. A tensor is passed as its address.

        Raises:
            TypeError: the number of arguments is wrong.
            OverflowError: an integer does not fit into the parameter's type.
        """
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, got {len(arguments)}")
        values: list[Any] = [*_memref(0), *_memref(0)]
        for kind, value in zip(self.parameters, arguments, strict=True):
            values += _memref(int(value)) if kind.startswith("memref") else [_number(kind, value)]
        x, y, z = grid
        for program in range(x * y * z):
            position = (program % x, program // x % y, program // (x * y))
            _runtime().begin_program()
            self._function(*values, *map(ctypes.c_int32, (x, y, z, *position)))


def _memref(address: int) -> list[Any]:
    return [ctypes.c_void_p(address), ctypes.c_void_p(address), *map(ctypes.c_int64, (0, 0, 1))]


def _number(kind: str, value: int | float) -> Any:
    if kind == "f32":
        return ctypes.c_float(value)
    integer = _INTEGERS[kind](int(value))
    if integer.value != value:
        raise OverflowError(f"{value} does not fit {kind}")
    return integer


_kernels: dict[str, Kernel] = {}
_cache: Path | None = None


def set_cache(folder: Path) -> None:
    """Sets the cache folder for machine code. A cache key is a hash of the linalg IR, the tools and their options."""
    global _cache
    folder.mkdir(parents=True, exist_ok=True)
    _cache = folder


def kernel(linalg: str) -> Kernel:
    """Returns the compiled kernel of a linalg module."""
    build([linalg])
    return _kernels[linalg]


def loaded() -> tuple[str, ...]:
    """Returns the linalg IR of all kernels that this process has loaded."""
    return tuple(_kernels)


def build(linalgs: Iterable[str]) -> None:
    """Compiles several kernels into one library. Separate libraries would take ten times as long."""
    symbols = {linalg: _symbol(linalg) for linalg in linalgs if linalg not in _kernels}
    libraries = {linalg: library for linalg, symbol in symbols.items() if (library := _cached_library(symbol))}
    missing = [linalg for linalg in symbols if linalg not in libraries]
    if missing:
        libraries |= dict.fromkeys(missing, _compile({symbols[linalg]: linalg for linalg in missing}))
    for linalg, library in libraries.items():
        _kernels[linalg] = Kernel(*_signature(linalg), getattr(library, symbols[linalg]))


def _symbol(linalg: str) -> str:
    return "k" + hashlib.sha256("\0".join((linalg, *_toolchain())).encode()).hexdigest()


@functools.cache
def _toolchain() -> tuple[str, ...]:
    version = subprocess.run([find_tool("mlir-opt"), "--version"], capture_output=True, text=True, check=True).stdout
    return version, *_PASSES, *_LLVM_OPTIONS


def _cached_library(symbol: str) -> ctypes.CDLL | None:
    path = None if _cache is None else _cache / f"{symbol}.so"
    if path is None or not path.exists():
        return None
    _runtime()
    return ctypes.CDLL(str(path))


def _signature(linalg: str) -> tuple[str, tuple[str, ...]]:
    headers = _HEADER.findall(linalg)
    if len(headers) != 1:
        raise ValueError(f"expected linalg IR of one function, found {len(headers)}")
    [(name, parameters)] = headers
    types = _PARAMETER.findall(parameters)
    if types[: len(_ADDED_BEFORE)] != _ADDED_BEFORE or types[-len(_ADDED_AFTER) :] != _ADDED_AFTER:
        raise ValueError(f"{name} does not have the parameters that triton-ascend 3.2 adds: {', '.join(types)}")
    return name, tuple(types[len(_ADDED_BEFORE) : -len(_ADDED_AFTER)])


def _with_unique_names(linalg: str, symbol: str) -> tuple[str, str]:
    """Renames the affine maps and the function of a module after `symbol`, and returns both as text."""
    maps, module, function = linalg.strip().partition("module {")
    if not (module and function.endswith("}")) or any(not line.startswith("#map") for line in maps.splitlines()):
        raise ValueError("expected linalg IR as one module without attributes")
    name, _ = _signature(linalg)
    function = function.removesuffix("}").replace(f"func.func @{name}(", f"func.func @{symbol}(", 1)
    return maps.replace("#map", f"#{symbol}_map"), function.replace("#map", f"#{symbol}_map")


def _compile(kernels: Mapping[str, str]) -> ctypes.CDLL:
    """Compiles linalg IR, given by symbol name, into one library."""
    _runtime()
    sources = [_with_unique_names(linalg, symbol) for symbol, linalg in kernels.items()]
    maps, functions = map("\n".join, zip(*sources, strict=True))
    with tempfile.TemporaryDirectory(prefix="offboard-", dir=_cache) as folder:
        path = Path(folder, "kernels")
        path.with_suffix(".linalg").write_text(f"{maps}\nmodule {{\n{functions}\n}}\n")
        _run("mlir-opt", path, ".linalg", ".mlir", "--allow-unregistered-dialect", *_PASSES)
        _run("mlir-translate", path, ".mlir", ".ll", "--mlir-to-llvmir")
        _run("opt", path, ".ll", ".bc", *_LLVM_OPTIONS)
        _run("llc", path, ".bc", ".o", *_LLVM_OPTIONS, "-relocation-model=pic", "-filetype=obj")
        library = _link([path.with_suffix(".o")], path.with_suffix(".so"))
        if _cache is not None:
            for symbol in kernels:
                with contextlib.suppress(FileExistsError):  # another process has already stored it
                    os.link(path.with_suffix(".so"), _cache / f"{symbol}.so")
        return library


@functools.cache
def _runtime() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="offboard-") as folder:
        return _link([Path(__file__).with_name("runtime.c")], Path(folder, "runtime.so"), ctypes.RTLD_GLOBAL)


def _run(tool: str, path: Path, source: str, target: str, *options: str) -> None:
    _execute([find_tool(tool), path.with_suffix(source), *options, "-o", path.with_suffix(target)])


def _link(sources: Sequence[Path], target: Path, mode: int = ctypes.RTLD_LOCAL) -> ctypes.CDLL:
    _execute(["gcc", "-O2", "-shared", "-fPIC", *sources, "-o", target, "-lm"])
    return ctypes.CDLL(str(target), mode=mode)


def _execute(command: Sequence[str | Path]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {result.stderr[-2000:]}")


@functools.cache
def find_tool(tool: str) -> str:
    """Returns the path of an LLVM tool of version `LLVM_VERSION`, which reads triton-ascend's IR.

    Raises:
        FileNotFoundError: it is not installed. The message says how to install it.
    """
    folder = os.environ.get("LLVM_BIN", f"/usr/lib/llvm-{LLVM_VERSION}/bin")
    found = shutil.which(tool, path=folder) or shutil.which(f"{tool}-{LLVM_VERSION}")
    if found is None:
        raise FileNotFoundError(
            f"{tool} of LLVM {LLVM_VERSION} is neither in {folder} nor on the path: install "
            f"mlir-{LLVM_VERSION}-tools and llvm-{LLVM_VERSION} (Debian, Ubuntu), or set LLVM_BIN to the folder"
        )
    return found
