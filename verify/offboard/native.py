"""Makes machine code of linalg IR with MLIR's and LLVM's own tools, and calls it program by program.

triton-ascend gives a kernel two memrefs before its own arguments, for locks and a workspace, and six integers after
them: the grid's three sizes, and a program's place in it. A memref is passed as five words (allocated, aligned, offset,
size, stride), of which only the second counts.
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
_BEFORE, _AFTER = ["memref<?xi8>"] * 2, ["i32"] * 6
_INTEGERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in machine code."""

    name: str
    parameters: tuple[str, ...]
    """MLIR's type of each of its own arguments: a memref, i32, i64 or f32."""
    _function: Callable[..., None] = field(repr=False)

    def __call__(self, grid: tuple[int, int, int], arguments: Sequence[int | float]) -> None:
        """Runs every program of a grid, one after the other. Tensors are given by address.

        Raises TypeError for a wrong number of arguments, OverflowError for an integer that its type doesn't hold.
        """
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, got {len(arguments)}")
        words: list[Any] = [*_memref(0), *_memref(0)]
        for kind, value in zip(self.parameters, arguments, strict=True):
            words += _memref(int(value)) if kind.startswith("memref") else [_number(kind, value)]
        x, y, z = grid
        for program in range(x * y * z):
            place = (program % x, program // x % y, program // (x * y))
            _runtime().begin_program()
            self._function(*words, *map(ctypes.c_int32, (x, y, z, *place)))


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


def keep_in(folder: Path) -> None:
    """From now on machine code is kept in a folder, and found there again by all that went into it."""
    global _cache
    folder.mkdir(parents=True, exist_ok=True)
    _cache = folder


def kernel(linalg: str) -> Kernel:
    """The kernel of some linalg IR, built if it hasn't been."""
    build([linalg])
    return _kernels[linalg]


def build(linalgs: Iterable[str]) -> None:
    """Builds kernels together, which takes a tenth of the time that it takes one by one."""
    symbols = {linalg: _symbol(linalg) for linalg in linalgs if linalg not in _kernels}
    libraries = {linalg: library for linalg, symbol in symbols.items() if (library := _kept(symbol))}
    missing = [linalg for linalg in symbols if linalg not in libraries]
    if missing:
        libraries |= dict.fromkeys(missing, _compile({symbols[linalg]: linalg for linalg in missing}))
    for linalg, library in libraries.items():
        _kernels[linalg] = Kernel(*_signature(linalg), getattr(library, symbols[linalg]))


def _symbol(linalg: str) -> str:
    return "k" + hashlib.sha256("\0".join((linalg, *_recipe())).encode()).hexdigest()


@functools.cache
def _recipe() -> tuple[str, ...]:
    """All but the linalg IR that goes into machine code, and so into its name."""
    version = subprocess.run([find_tool("mlir-opt"), "--version"], capture_output=True, text=True, check=True).stdout
    return version, *_PASSES, *_LLVM_OPTIONS


def _kept(symbol: str) -> ctypes.CDLL | None:
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
    if types[: len(_BEFORE)] != _BEFORE or types[-len(_AFTER) :] != _AFTER:
        raise ValueError(f"{name} is not called as triton-ascend 3.2 calls a kernel: {', '.join(types)}")
    return name, tuple(types[len(_BEFORE) : -len(_AFTER)])


def _renamed(linalg: str, symbol: str) -> tuple[str, str]:
    """The affine maps and the function of a module, under names that no other kernel has."""
    maps, module, function = linalg.strip().partition("module {")
    if not (module and function.endswith("}")) or any(not line.startswith("#map") for line in maps.splitlines()):
        raise ValueError("expected linalg IR as one module without attributes")
    name, _ = _signature(linalg)
    function = function.removesuffix("}").replace(f"func.func @{name}(", f"func.func @{symbol}(", 1)
    return maps.replace("#map", f"#{symbol}_map"), function.replace("#map", f"#{symbol}_map")


def _compile(kernels: Mapping[str, str]) -> ctypes.CDLL:
    """Machine code of kernels by symbol, in one library."""
    _runtime()
    renamed = [_renamed(linalg, symbol) for symbol, linalg in kernels.items()]
    maps, functions = map("\n".join, zip(*renamed, strict=True))
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
                with contextlib.suppress(FileExistsError):  # another process built the same
                    os.link(path.with_suffix(".so"), _cache / f"{symbol}.so")
        return library


@functools.cache
def _runtime() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="offboard-") as folder:
        return _link([Path(__file__).with_name("runtime.c")], Path(folder, "runtime.so"), ctypes.RTLD_GLOBAL)


def _run(tool: str, path: Path, source: str, target: str, *options: str) -> None:
    _check([find_tool(tool), path.with_suffix(source), *options, "-o", path.with_suffix(target)])


def _link(sources: Sequence[Path], target: Path, mode: int = ctypes.RTLD_LOCAL) -> ctypes.CDLL:
    _check(["gcc", "-O2", "-shared", "-fPIC", *sources, "-o", target, "-lm"])
    return ctypes.CDLL(str(target), mode=mode)


def _check(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr[-2000:]}")


@functools.cache
def find_tool(tool: str) -> str:
    """Where a tool of LLVM is, of the version that reads triton-ascend's IR. FileNotFoundError says how to get it."""
    folder = os.environ.get("LLVM_BIN", f"/usr/lib/llvm-{LLVM_VERSION}/bin")
    found = shutil.which(tool, path=folder) or shutil.which(f"{tool}-{LLVM_VERSION}")
    if found is None:
        raise FileNotFoundError(
            f"{tool} of LLVM {LLVM_VERSION} is neither in {folder} nor on the path: install "
            f"mlir-{LLVM_VERSION}-tools and llvm-{LLVM_VERSION} (Debian, Ubuntu), or name the folder in LLVM_BIN"
        )
    return found
