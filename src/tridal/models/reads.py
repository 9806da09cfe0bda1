"""What a module computes, and what its forward reads beside its input. Finds later changes of it.

A comparison is valid while a module has the attributes and the methods that its copy has read in the comparison.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from tridal.models.replacements import base_of, log_changed, origin, torch_computes

OF_MODULES = {"training", "forward", *torch.nn.Module().__dict__}
"""The attributes that every module has, and the forward that a program may assign to a module."""
_METHODS = (types.FunctionType, types.BuiltinFunctionType, property)
_ATOMS = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, enum.Enum, *_METHODS)


class Absent:
    """Stands for the value of an attribute that does not exist."""


class MayChange(NamedTuple):
    """Stands for an object that may change unnoticed, such as a tensor or a config."""

    kind: str


class Different(Exception):
    """A module cannot be replaced. The message is the reason."""


def _fixed(value: Any, owner: Any) -> Any:
    """Returns the value of an owner's attribute in a hashable form, or `MayChange`."""
    try:
        return _frozen(value, owner)
    except TypeError as error:
        return MayChange(str(error))


def _frozen(value: Any, owner: Any) -> Any:
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, (tuple, list)):
        items = tuple(_frozen(item, owner) for item in value)
        return value if items == value else items  # `Reads.hold` compares the same object in less time
    if isinstance(value, dict):
        return (dict, *((name, _frozen(item, owner)) for name, item in value.items()))
    if isinstance(value, functools.partial):
        return (functools.partial, *(_frozen(item, owner) for item in (value.func, value.args, value.keywords)))
    if isinstance(value, types.MethodType) and value.__self__ is owner:
        return types.MethodType, value.__func__
    raise TypeError(type(value).__name__)


class _Part(NamedTuple):
    """What is read of one module."""

    child: str | None
    """The name of a module inside, or None for the module itself."""
    kind: type
    names: frozenset[str]
    values: tuple[tuple[type | None, str, Any], ...]
    """For each attribute: None, its name and value. For each method or constant of a class: the class first."""


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
        for child, kind, _, values in self.parts:
            owner = module if child is None else module._modules[child]
            if child is not None and base_of(owner) is not kind:
                return child
            own = owner.__dict__
            for of, name, value in values:
                if of is None:
                    found = own.get(name, Absent)
                    if found is Absent:
                        found = getattr(owner, name, Absent)
                    if found is not value and _fixed(found, owner) != value:
                        return name if child is None else f"{child}.{name}"
                else:
                    found = getattr(of, name, Absent)
                    if (found is not value and _fixed(found, of) != value) or (name in own and name != "forward"):
                        return f"{of.__name__}.{name}"
        return None

    def of(self, module: Any) -> Reads:
        """Returns what another module has under the names that were read."""
        return Reads(tuple(_part(p.child, module, p.names) for p in self.parts))

    def why_not(self, module: Any) -> str | None:
        """Returns why what is read may change unnoticed, or None."""
        for child, _, names, values in self.parts:
            buffers = _inside(module, child)._buffers
            if read := names & buffers.keys() or ("_buffers" in names and buffers.keys()):
                return f"its forward reads the buffer {min(read)}, whose numbers may change"
            for _, name, value in values:
                if isinstance(value, MayChange):
                    return f"its forward reads the attribute {name}, a {value.kind}, which may change"
        return None

    def __deepcopy__(self, memo: Any) -> Reads:
        return self

    def __reduce__(self) -> Any:
        """Pickles the origin of each method, because pickle does not find the method of a patched class."""
        return _loaded, tuple(p._replace(values=tuple(_saved(*value) for value in p.values)) for p in self.parts)


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a replaced module computes: `compute(module, *inputs)` returns the output, or None if the class computes it.

    It can be pickled. Its text is the function of tridal with arguments.
    """

    inputs: ClassVar[int] = 1
    """How many tensors the forward of the module takes."""
    reads: Reads = Reads()

    @property
    def compiler_is_faster(self) -> bool:
        """Whether compiled functions get the operations of the class, which a compiler fuses. See docs/models.md."""
        return True

    def computes(self, module: Any, x: Any) -> bool:
        """Whether tridal may compute a module for an input."""
        if not isinstance(x, torch.Tensor) or torch_computes(x.device):
            return False
        if torch.compiler.is_dynamo_compiling() and self.compiler_is_faster:
            return False
        return self.reads.hold(module)

    def describe(self, module: torch.nn.Module) -> str | None:
        """For which inputs the module's class computes, or None."""
        return None


def _inside(module: Any, child: str | None) -> Any:
    return module if child is None else module._modules[child]


def _saved(of: Any, name: str, value: Any) -> tuple[Any, str, Any]:
    is_method = of is not None and isinstance(value, _METHODS)
    return of, name, ("origin", origin(value)) if is_method else value


def _loaded(*parts: _Part) -> Reads:
    """Returns the reads with the methods of this process. A method with another origin counts as changed."""

    def load(of: Any, name: str, saved: Any) -> Any:
        found = Absent if of is None else getattr(of, name, Absent)
        return of, name, found if _saved(of, name, found)[2] == saved else saved

    return Reads(tuple(p._replace(values=tuple(load(*value) for value in p.values)) for p in parts))


class Recorder:
    """Makes copies of a module and of modules inside, and records what their forwards read."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._copies: dict[str | None, dict[str, Any]] = {}
        """The attributes of the last copies: None for the module, and the names of modules inside."""
        self._read: dict[str | None, set[str]] = {}
        self._set: set[str] = set()
        self.passed: set[str] = set()
        """The names of buffers and parameters that the form reads in each call, so that their numbers may change."""

    def copy(self, child: str | None = None, **changes: Any) -> Any:
        """Returns a copy of a module with some changed attributes. Calls of the copy run its forward without hooks."""
        module: torch.nn.Module = _inside(self.module, child)
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
        self._copies[child] = own
        return made

    def set_mode(self, training: bool) -> None:
        """Sets the mode of the last copies."""
        for own in self._copies.values():
            own["training"] = training

    def reads(self) -> tuple[Reads, str | None]:
        """Returns what the copies have read, and why the module cannot be replaced because of it, or None."""
        read = {child: frozenset(self._read[child] - self.passed) for child in self._copies}
        reads = Reads(tuple(_part(child, self.module, names) for child, names in read.items()))
        changed = f"its forward sets the attribute {min(self._set)}" if self._set else None
        return reads, changed or reads.why_not(self.module)


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
    module = _inside(module, child)
    base, own = base_of(module), module.__dict__
    values: list[tuple[type | None, str, Any]] = []
    for name in sorted(names - {*(OF_MODULES - {"forward"}), *module._parameters, *module._modules}):
        of_class = getattr(base, name, Absent)
        if of_class is Absent or (name in own and name != "forward" and not isinstance(of_class, property)):
            values.append((None, name, _fixed(own.get(name, Absent), module)))
        elif not name.startswith("__") and of_class is not getattr(torch.nn.Module, name, Absent):
            parents = (kind for kind in base.__mro__[1:] if name in vars(kind) and kind is not torch.nn.Module)
            values += [(kind, name, _fixed(getattr(kind, name), kind)) for kind in (base, *parents)]
    return _Part(child, base, names, tuple(values))


def own_forward(module: torch.nn.Module) -> Any:
    """Returns the function of a class's forward without its decorators, or None if it is no function of Python."""
    forward = inspect.unwrap(type(module).forward)
    return forward if isinstance(forward, types.FunctionType) else None


def names_in(function: Any) -> list[str]:
    """Returns the globals and attributes that a function of Python uses, also in functions inside. [] for None."""
    code = function if isinstance(function, types.CodeType) else getattr(function, "__code__", None)
    inside = () if code is None else (const for const in code.co_consts if isinstance(const, types.CodeType))
    return [] if code is None else [*code.co_names, *(name for const in inside for name in names_in(const))]
