"""Compiles specializations with Triton, and reads the resources of the kernels. Needs no device.

Triton itself is imported on first use.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tridal.devices.lock import LOCK
from tridal.devices.types import ALIGNMENT, Backend, Resources, Target
from tridal.errors import PlanError, PluginError, TridalError
from tridal.kernels.function_caches import cached_by_functions
from tridal.kernels.function_errors import called_functions, describe, find_breakpoint
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.written import WrittenKernel
from tridal.runtime.interpreter_mode import can_load_interpreted, interpret_flag, interpreted, interpreted_library
from tridal.runtime.kernel_source import load
from tridal.runtime.specialization import Specialization
from tridal.runtime.standalone import standalone
from tridal.runtime.triton_cache import with_cache


@cached_by_functions
def resources(backend: Backend, specialization: Specialization, target: Target) -> Resources:
    """Compiles a specialization and returns the resources of its kernel."""
    compiled = compile_kernel(specialization, target)
    return backend.resources(compiled.asm, compiled.metadata.shared)


@cached_by_functions
def compile_kernel(specialization: Specialization, target: Target) -> Any:
    """Returns Triton's CompiledKernel for a target (backend, architecture, warp size). No device is needed.

    Raises:
        PluginError: Triton was imported with TRITON_INTERPRET=1, Triton cannot compile a function of the op, or a
            kernel has a breakpoint.
        PlanError: Triton has no compiler for the target. Or the kernel is cooperative, but this Triton does not launch
            all programs at the same time. Or the kernel cannot be written, see `with_cache`.
    """
    with LOCK:
        triton = import_triton()
        if interpreted_library(triton):
            raise PluginError(
                "Triton was imported with TRITON_INTERPRET=1 and cannot compile in this process: unset the variable "
                "(tridal's interpreter does not need it)"
            )
        from triton.backends.compiler import GPUTarget

        if not can_compile(target):
            raise PlanError(no_compiler(target))
        if (location := find_breakpoint(entry(specialization))) is not None:
            raise PluginError(
                f"{location}: Triton cannot compile breakpoint(): remove it, or run the kernel in Triton's interpreter"
            )
        with naming_functions(specialization, "Triton cannot compile"):
            source = _ast_source(specialization, triton)
            arguments = {"target": GPUTarget(*target), "options": _options(specialization)}
            compiled = with_cache(lambda: triton.compile(source, **arguments))
        # Triton ignores unknown options. Without this one, two kernels could wait for each other forever.
        if specialization.cooperative and not getattr(compiled.metadata, "launch_cooperative_grid", False):
            raise PlanError(
                f"Triton {triton.__version__} cannot start all programs of a cooperative kernel at the same time for "
                f"{target[0]}: install triton>=3.3, or plan another schedule"
            )
        return compiled


@contextlib.contextmanager
def naming_functions(specialization: Specialization, what: str) -> Iterator[None]:
    """Turns an error of Triton into a PluginError with the function of the op, or the written kernel, and the line.

    The message begins with the kernel and `what`. Other errors stay as they are.
    """
    try:
        yield
    except TridalError:
        raise
    except Exception as error:
        kernel, written = specialization.kernel, entry(specialization)
        functions = [f for f, python in called_functions([written]) if python.__module__ == kernel.module]
        found = describe(error, functions)
        if found is None and specialization.entry != "trial":
            found = describe(error, [written])
        if found is None:
            raise
        raise PluginError(f"kernel {kernel.name!r}: {what} {found}") from error


def can_compile(target: Target | None) -> bool:
    """Tells whether Triton is installed and compiles for a target. The device need not be present."""
    if target is None or importlib.util.find_spec("triton") is None:
        return False
    import_triton()
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    return any(backend.compiler.supports_target(GPUTarget(*target)) for backend in backends.values())


def no_compiler(target: Target) -> str:
    """Says that Triton has no compiler for a target, for an error message."""
    from triton.backends import backends

    known = f"it has compilers of {', '.join(backends)}"
    return f"Triton {import_triton().__version__} has no compiler for the target {target} ({known})"


def _ast_source(specialization: Specialization, triton: ModuleType) -> Any:
    from triton.compiler import ASTSource

    function, types = entry(specialization), dict(specialization.types)
    types, index = {name: types[name] for name in function.arg_names}, function.arg_names.index
    divisible = [index(name) for name in specialization.divisible if name in function.arg_names]
    if triton_version(triton) >= (3, 3):
        attributes = {(number,): [["tt.divisibility", ALIGNMENT]] for number in divisible}
        return ASTSource(function, types, {}, attributes)
    from triton.backends.compiler import AttrsDescriptor

    return ASTSource(function, types, {}, AttrsDescriptor.from_hints(dict.fromkeys(divisible, ALIGNMENT)))


def entry(specialization: Specialization, interpret: bool = False) -> Any:
    """Loads the function of a specialization for the compiler or the interpreter. Its arguments are `types`.

    Raises:
        PluginError: a function of the op is missing, or has an unknown parameter.
    """
    s = specialization
    return _entry(s.kernel, s.entry, tuple(dict(s.types)), s.constants, interpret)


def source(specialization: Specialization) -> str:
    """Prints a kernel with all functions that it calls, so that it runs without tridal.

    A comment has the options and the types with which the kernel is compiled.

    Raises:
        PluginError: see `entry`.
    """
    s = specialization
    import_triton()
    options = ", ".join(f"{name}={value}" for name, value in _options(s).items())
    types = ", ".join(f"{n} {kind}{' (a multiple of 16)' * (n in s.divisible)}" for n, kind in s.types)
    about = (f"The kernel {s.kernel.name!r}, compiled with {options}.", f"Its arguments: {types}.")
    wrapped = (textwrap.fill(part, 78, initial_indent="# ", subsequent_indent="# ") for part in about)
    written = WrittenKernel(s.kernel, s.entry, tuple(dict(s.types)), dict(s.constants))
    return "\n".join((*wrapped, "", standalone(s.kernel, written)))


def _options(specialization: Specialization) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": specialization.num_warps, "num_stages": specialization.num_stages}
    options["enable_fp_fusion"] = True  # Triton's default until 3.9; it changes in 3.10
    if specialization.max_registers:
        options["maxnreg"] = specialization.max_registers
    if specialization.cooperative:
        options["launch_cooperative_grid"] = True
    return options


@cached_by_functions
def _entry(
    kernel: RowKernel, name: str, arguments: tuple[str, ...], constants: tuple[tuple[str, Any], ...], interpret: bool
) -> Any:
    import_triton()
    with interpret_flag(False):
        written, whole = WrittenKernel(kernel, name, arguments, dict(constants)), can_load_interpreted()
        function = load(kernel, name, written, interpret and whole)
    return interpreted(function) if interpret and not whole else function


def import_triton() -> ModuleType:
    """Imports Triton with TRITON_INTERPRET=0, unless it is already imported."""
    with interpret_flag(False) if "triton" not in sys.modules else contextlib.nullcontext():
        import triton
        import triton.language
    return triton  # type: ignore[no-any-return]


def triton_version(triton: ModuleType) -> tuple[int, int]:
    """The version as (major, minor)."""
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)
