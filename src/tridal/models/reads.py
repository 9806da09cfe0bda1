"""Records what the forward of a module reads beside its input, and finds later changes of it.

A comparison is valid while a module has the attributes and the methods that its copy has read in the comparison.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import types
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tridal.models.replacements import base_of, log_changed, origin

OF_MODULES = {"training", "forward", *torch.nn.Module().__dict__}
"""The attributes that every module has, and the forward that a program may assign to a module."""
_METHODS = (types.FunctionType, types.BuiltinFunctionType, property)
_ATOMS = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, enum.Enum, *_METHODS)


class Absent:
    """Stands for the value of an attribute that does not exist."""


class Different(Exception):
    """A module cannot be replaced. The message is the reason."""


def fixed(value: Any, owner: Any) -> Any:
    """Returns the value of an owner's attribute in a hashable form that does not change.

    Raises:
        TypeError: the value is an object that may change unnoticed, such as a tensor or a config.
    """
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, (tuple, list)):
        items = tuple(fixed(item, owner) for item in value)
        return value if items == value else items  # `Reads.changed` compares the same object in less time
    if isinstance(value, dict):
        return (dict, *((name, fixed(item, owner)) for name, item in value.items()))
    if isinstance(value, functools.partial):
        return (functools.partial, *(fixed(item, owner) for item in (value.func, value.args, value.keywords)))
    if isinstance(value, types.MethodType) and value.__self__ is owner:
        return types.MethodType, value.__func__
    raise TypeError(f"a {type(value).__name__}, which may change")


def _is_equal(found: Any, value: Any, owner: Any) -> bool:
    """Returns whether an owner's attribute has a value of `fixed`."""
    try:
        return found is value or bool(fixed(found, owner) == value)
    except TypeError:
        return False


class _Part(NamedTuple):
    """What is read of one module."""

    child: str | None
    """The name of a module inside, or None for the module itself."""
    kind: type
    names: frozenset[str]
    attributes: tuple[tuple[str, Any], ...]
    """Names of attributes of the module, with values that do not change."""
    members: tuple[tuple[type, str, Any], ...]
    """Classes with names of their methods and constants, and with values that do not change."""


@dataclass(frozen=True)
class Reads:
    """What the forward of a module reads, with the values in the comparison."""

    parts: tuple[_Part, ...] = ()

    def hold(self, module: Any) -> bool:
        """Returns whether a module still has what its copy has read. Logs the first change of a class."""
        name = self._changed(module)
        if name is not None and not torch.compiler.is_dynamo_compiling():
            log_changed(type(module).__name__, name)
        return name is None

    def _changed(self, module: Any) -> str | None:
        """Returns the name of something that has another value than in the comparison, or None."""
        for child, kind, _, attributes, members in self.parts:
            owner = module if child is None else module._modules[child]
            if child is not None and base_of(owner) is not kind:
                return child
            own = owner.__dict__
            for name, value in attributes:
                found = own.get(name, Absent)
                if found is Absent:
                    found = getattr(owner, name, Absent)
                if found is not value and not _is_equal(found, value, owner):
                    return name if child is None else f"{child}.{name}"
            for kind, name, value in members:
                found = getattr(kind, name, Absent)
                if (found is not value and not _is_equal(found, value, kind)) or (name in own and name != "forward"):
                    return f"{kind.__name__}.{name}"
        return None

    def of(self, module: Any) -> Reads:
        """Returns what another module has under the names that were read."""
        return Reads(tuple(_part(p.child, _inside(module, p.child), p.names) for p in self.parts))

    def __deepcopy__(self, memo: Any) -> Reads:
        return Reads(tuple(p._replace(attributes=copy.deepcopy(p.attributes, memo)) for p in self.parts))

    def __reduce__(self) -> Any:
        """Pickles the origin of each method, because pickle does not find the method of a patched class."""
        return _loaded, tuple(p._replace(members=tuple((*m[:2], _saved(m[2])) for m in p.members)) for p in self.parts)


NOTHING = Reads()
"""The reads of a form that is not compared yet."""


def _inside(module: Any, child: str | None) -> Any:
    return module if child is None else module._modules[child]


def _saved(value: Any) -> Any:
    return ("origin", origin(value)) if isinstance(value, _METHODS) else value


def _loaded(*parts: _Part) -> Reads:
    """Returns the reads with the methods of this process. A method with another origin counts as changed."""

    def load(kind: Any, name: str, saved: Any) -> Any:
        found = getattr(kind, name, Absent)
        return kind, name, found if _saved(found) == saved else saved

    return Reads(tuple(p._replace(members=tuple(load(*member) for member in p.members)) for p in parts))


class Recorder:
    """Makes copies of a module and of modules inside, and records what their forwards read."""

    def __init__(self) -> None:
        self._copies: dict[str | None, tuple[torch.nn.Module, dict[str, Any]]] = {}
        """For the module, None, and the names of modules inside: the original, and the attributes of the last copy."""
        self._read: dict[str | None, set[str]] = {}
        self._set: set[str] = set()

    def copy(self, module: torch.nn.Module, child: str | None = None, **changes: Any) -> Any:
        """Returns a copy of a module with some changed attributes. Calls of the copy run its forward without hooks."""
        base = base_of(module)
        own = {name: value for name, value in module.__dict__.items() if not name.startswith("_tridal_")}
        replaced = own.pop("forward", None)
        if child is not None and replaced is not None and getattr(replaced, "__func__", None) is not base.forward:
            raise Different(f"another package has replaced the forward of {child} by {origin(replaced)}")
        made: Any = object.__new__(_recording(base))
        for name, value in own.items():
            if isinstance(value, types.MethodType) and value.__self__ is module:
                own[name] = types.MethodType(value.__func__, made)
        own |= {**changes, "_tridal_read": self._read.setdefault(child, {"forward"}), "_tridal_set": self._set}
        object.__setattr__(made, "__dict__", own)
        self._copies[child] = module, own
        return made

    def set_mode(self, training: bool) -> None:
        """Sets the mode of the last copies."""
        for _, own in self._copies.values():
            own["training"] = training

    def reads(self) -> Reads | str:
        """Returns what the copies have read, or why it may change unnoticed."""
        if self._set:
            return f"its forward sets the attribute {min(self._set)}"
        copies = ((child, module, frozenset(self._read[child])) for child, (module, _) in self._copies.items())
        try:
            return Reads(tuple(_part(*copy) for copy in copies))
        except Different as reason:
            return str(reason)


@functools.cache
def _recording(base: Any) -> Any:
    """Returns a subclass whose instances record the names that are read and set."""

    def read(self: Any, name: str) -> Any:
        object.__getattribute__(self, "__dict__")["_tridal_read"].add(name)
        return base.__getattribute__(self, name)

    def set_(self: Any, name: str, value: Any) -> None:
        object.__getattribute__(self, "__dict__")["_tridal_set"].add(name)
        base.__setattr__(self, name, value)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return base.forward(self, *args, **kwargs)

    names = {"__module__": base.__module__, "__getattribute__": read, "__setattr__": set_, "__call__": call}
    return type(base)(base.__name__, (base,), names)


def _part(child: str | None, module: Any, names: frozenset[str]) -> _Part:
    if read := names & module._buffers.keys() or ("_buffers" in names and module._buffers.keys()):
        raise Different(f"its forward reads the buffer {min(read)}, whose numbers may change")
    base, own, attributes, members = base_of(module), module.__dict__, [], []
    for name in sorted(names - {*(OF_MODULES - {"forward"}), *module._parameters, *module._modules}):
        of_class = getattr(base, name, Absent)
        if of_class is Absent or (name in own and name != "forward" and not isinstance(of_class, property)):
            attributes.append((name, _checked(name, own.get(name, Absent), module)))
        elif not name.startswith("__") and of_class is not getattr(torch.nn.Module, name, Absent):
            parents = (kind for kind in base.__mro__[1:] if name in vars(kind) and kind is not torch.nn.Module)
            members += [(kind, name, _checked(name, getattr(kind, name), kind)) for kind in (base, *parents)]
    return _Part(child, base, names, tuple(attributes), tuple(members))


def _checked(name: str, value: Any, owner: Any) -> Any:
    try:
        return fixed(value, owner)
    except TypeError as error:
        raise Different(f"its forward reads the attribute {name}, {error}") from None


def own_forward(module: torch.nn.Module) -> Any:
    """Returns the function of a class's forward without its decorators, or None if it is no function of Python."""
    forward = inspect.unwrap(type(module).forward)
    return forward if isinstance(forward, types.FunctionType) else None


def names_in(function: Any) -> list[str]:
    """Returns the globals and attributes that a function of Python uses, also in functions inside. [] for None."""
    code = function if isinstance(function, types.CodeType) else getattr(function, "__code__", None)
    inside = () if code is None else (const for const in code.co_consts if isinstance(const, types.CodeType))
    return [] if code is None else [*code.co_names, *(name for const in inside for name in names_in(const))]
