"""The table of ops: the bundled ones, and those of third parties from entry points of the group `tridal.ops`.

An entry point has the name of its `Op`. A fault of one op is recorded with it and does not affect other ops.
Entry points are loaded on first use, not on import.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name
from typing import TypeVar

from tridal.devices.config_override import ConfigOverride
from tridal.devices.entry_points import BUNDLED, IN_CODE, describe_error, entry_points, load
from tridal.devices.lock import LOCK
from tridal.devices.settings import Settings
from tridal.errors import PlanError, PluginError, SettingsError, nearest
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.op import Op

GROUP = "tridal.ops"
_LIBRARY = "tridal.library"
"""The package whose `OPS` are the bundled ops. Its modules import this one."""

_T = TypeVar("_T")
_log = logging.getLogger("tridal")
_entries: tuple[RegisteredOp, ...] | None = None
_declared: dict[str, Op] = {}
"""The newest declaration of each op that code has registered, by name."""


@dataclass(frozen=True, slots=True)
class RegisteredOp:
    """An entry of the table: a name, its distribution, and either the op or the reason why it cannot be used."""

    name: str
    origin: str
    op: Op | None
    """None if it cannot be used."""
    fault: str | None = None


def registered() -> tuple[RegisteredOp, ...]:
    """Lists all ops, including those that cannot be used. The bundled ops come first."""
    global _entries
    with LOCK:
        _entries = _entries or _discover()
    return _entries


def clear() -> None:
    """Removes the ops of third parties. They are loaded again on next use."""
    global _entries
    _entries = None


def ops() -> dict[str, Op]:
    """The ops that can be used, by name."""
    found = {entry.name: entry.op for entry in registered() if entry.op is not None}
    return found | {name: op for name, op in _declared.items() if name in found and _is_again(op, found[name])}


def first() -> Op:
    """The op that commands use if no op is chosen."""
    return next(iter(ops().values()))


def kernels() -> dict[str, RowKernel]:
    """The kernels of all ops by name, for example "softmax" and "softmax_backward"."""
    return {kernel.name: kernel for op in ops().values() for kernel in op.kernels}


def op_named(name: str, known: Mapping[str, Op] | None = None) -> Op:
    """Finds an op among all, or in `known`. Raises PlanError if it is unknown or cannot be used.

    An op that code has registered, and that no distribution has, is found by its name, or by "module:object".
    """
    if ":" in name:
        return _in_module(name)
    return _find(name, ops() if known is None else known, _declared)


def selected(names: Sequence[str] | None) -> list[Op]:
    """Finds ops by their names, or all ops. Raises PlanError as `op_named` does."""
    return list(ops().values()) if names is None else [op_named(name) for name in names]


def kernel_named(name: str) -> RowKernel:
    """Returns the kernel with this name.

    Raises:
        PlanError: there is none, its op cannot be used, or an op with this name has no kernel of its own.
    """
    known = kernels()
    if name in ops() and name not in known:
        raise PlanError(f"op {name!r} has no kernel of its own; known kernels are {', '.join(known)}")
    return _find(name, known, {kernel.name: kernel for op in _declared.values() for kernel in op.kernels})


def kernel_configs(settings: Settings) -> tuple[ConfigOverride, ...]:
    """Reads the setting `kernel_configs`. Raises SettingsError if it names an unknown kernel."""
    for override in settings.kernel_configs or ():
        try:
            kernel_named(override.kernel)
        except PlanError as error:
            raise SettingsError(f"{override.location}: kernel: {error}") from None
    return settings.kernel_configs or ()


def _find(name: str, known: Mapping[str, _T], declared: Mapping[str, _T]) -> _T:
    for found in (known, declared):
        if name in found:
            return found[name]
    broken = next((entry for entry in registered() if entry.name == name and entry.fault is not None), None)
    if broken is not None:
        raise PlanError(f"op {name!r} of {broken.origin} cannot be used: {broken.fault}")
    raise PlanError(f"unknown op {name!r}{nearest(name, known)} (known: {', '.join(known)})")


def check(op: Op) -> None:
    """Checks an op object. Loads no entry points, because an op's module may call this function.

    A module may declare an op again.

    Raises:
        PluginError: its declaration has a fault, or an op of another module has its name.
    """
    bundled = getattr(sys.modules.get(_LIBRARY), "OPS", ())  # none while the library itself is imported
    declared = [RegisteredOp(name, f"{IN_CODE} by {_module_of(other)}", other) for name, other in _declared.items()]
    entries = (*declared, *(_entries or map(_bundled, bundled)))  # an entry of a distribution has the better origin
    others = {entry.name: entry for entry in entries if entry.op is not None and not _is_again(op, entry.op)}
    fault = _fault(op, op.name, others)
    if fault is not None:
        raise PluginError(f"op {op.name!r} cannot be used: {fault}")


def add(op: Op) -> None:
    """Adds an op that code has registered. It replaces an earlier declaration of the same module."""
    _declared[op.name] = op


def _is_again(op: Op, known: Op) -> bool:
    """Tells whether an op is a known one, or another declaration of it."""
    module = _module_of(known)
    again = op.name == known.name and _module_of(op) == module and not module.startswith(f"{_LIBRARY}.")
    return op is known or again


def _module_of(op: Op) -> str:
    """Finds the module that declares an op: that of its reference."""
    function = op.reference
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", None) or op.forward.module


def _in_module(name: str) -> Op:
    try:
        op = resolve_name(name)
        if not isinstance(op, Op):
            raise PluginError(f"expected a tridal.ops.Op, found {type(op).__name__}")
        check(op)
    except (Exception, SystemExit) as error:
        reason = str(error) if isinstance(error, PluginError) else describe_error(error)
        raise PlanError(f"op {name!r} cannot be used: {reason}") from error
    add(op)
    return op


def _discover() -> tuple[RegisteredOp, ...]:
    entries = {op.name: _bundled(op) for op in import_module(_LIBRARY).OPS}
    broken: list[RegisteredOp] = []
    for origin, point in entry_points(GROUP):
        op, fault = load(point, lambda loaded, name: _fault(loaded, name, entries))
        entry = RegisteredOp(point.name, origin, op, fault)
        if fault is None:
            entries[point.name] = entry
        else:
            _log.warning("op %r of %s cannot be used: %s", point.name, origin, fault)
            broken.append(entry)
    return (*entries.values(), *broken)


def _bundled(op: Op) -> RegisteredOp:
    return RegisteredOp(op.name, BUNDLED, op)


def _fault(op: object, name: str, known: Mapping[str, RegisteredOp]) -> str | None:
    if not isinstance(op, Op):
        return f"expected a tridal.ops.Op, found {type(op).__name__}"
    if op.name != name:
        return f"its entry point is called {name!r}, but its name is {op.name!r}"
    if (fault := op.fault()) is not None:
        return fault
    others = [entry.op for entry in known.values() if entry.op is not None]
    taken = {name: other.name for other in others for name in (other.name, *(kernel.name for kernel in other.kernels))}
    for kernel in (op.name, f"{op.name}_backward"):
        if kernel in taken:
            return f"its name is taken: {known[taken[kernel]].origin} has an op {taken[kernel]!r}"
    return None
