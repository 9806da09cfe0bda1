"""Replaces the class of a module by a subclass whose forward calls tridal. The module itself is the same object.

So parameters, hooks, names and ties are kept, and copies and replicas of the module compute with their own tensors. The
subclass has the name of the module's class, and is created again when a module is copied or unpickled.
"""

from __future__ import annotations

import copyreg
import functools
import types
from typing import Any, SupportsIndex

import torch

from tridal.pytorch.device_context import device_context, is_served

FORM = "_tridal_form"
"""The attribute of a replaced module that holds what it computes. Without it, the module computes as its class."""

COMPARING: list[str] = []
"""Not empty while a loss is compared. tridal's functions then compute on every device, by torch if necessary."""


def is_traced() -> bool:
    """Returns whether TorchScript traces. Modules then compute as before, so that a traced program needs no tridal."""
    return not torch.compiler.is_dynamo_compiling() and torch.jit.is_tracing()  # type: ignore


def torch_computes(device: torch.device) -> bool:
    """Returns whether modules and losses compute as before: no backend serves a device, or TorchScript traces."""
    if torch.compiler.is_dynamo_compiling():
        return not is_served(device.type)
    return is_traced() or (device_context(device).torch_computes and not COMPARING)


class Replacement:
    """Base class of all replacements. A subclass is the first base of the class of a replaced module."""

    _tridal_form: Any = None
    inherited_properties: tuple[str, ...] = ()
    """The properties of a module's class whose functions are methods named `_inherited_NAME` of the replaced class.

    torch.compile cannot trace a property of `super()`.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if reduced[0] is not copyreg.__newobj__ or not isinstance(reduced, tuple):  # type: ignore[attr-defined]
            return reduced  # the class defines how it is copied
        kind, base = type(self).__bases__
        return (_new_module, (kind, base), *reduced[2:])


def _new_module(kind: Any, base: Any) -> Any:
    made = replaced_class(kind, base)
    return made.__new__(made)


@functools.cache
def replaced_class(kind: Any, base: Any) -> Any:
    """Returns the subclass of a module's class with the forward of a replacement."""
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = kind.forward
    forward = types.FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    functools.update_wrapper(forward, base.forward)  # callers inspect the signature of a model's forward
    inherited = {f"_inherited_{name}": getattr(base, name).fget for name in kind.inherited_properties}
    return type(base.__name__, (kind, base), {**names, **inherited, "forward": forward})


def replace(module: torch.nn.Module, kind: Any, form: Any) -> None:
    """Makes a module compute with a replacement. `form` is what it computes; it has to be picklable."""
    base: Any = type(module)
    module.__class__ = replaced_class(kind, base)
    module.__dict__[FORM] = form


def restore(module: torch.nn.Module) -> None:
    """Gives a module its class back. If its class was changed again later, the module computes as before."""
    if is_replaced(module):
        for name in [name for name in module.__dict__ if name.startswith("_tridal_")]:
            del module.__dict__[name]
        kind, *bases = type(module).__bases__
        if kind.__bases__ == (Replacement,):  # the class is that of `replaced_class`
            (module.__class__,) = bases


def is_replaced(module: torch.nn.Module) -> bool:
    """Returns whether tridal computes a module, as far as it can."""
    return isinstance(module, Replacement) and FORM in module.__dict__


class Layer(Replacement):
    """The forward of a module that takes one tensor, such as a norm or an activation. The form computes it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output. The module's class computes what its form does not."""
        if len(args) == 1 and not kwargs and self._tridal_form is not None:
            result = self._tridal_form.compute(self, args[0])
            if result is not None:
                return result
        return super().forward(*args, **kwargs)  # type: ignore[misc]


class Function(Replacement):
    """The forward of a module of torch that has a subclass in tridal.nn. The form is this subclass."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the forward of tridal's module, or of torch's."""
        if self._tridal_form is None or is_traced():
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        return self._tridal_form.forward(self, *args, **kwargs)
