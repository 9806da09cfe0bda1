"""Replaces the class of a module by a subclass whose forward calls tridal. The module itself is the same object.

This keeps parameters, hooks, names and ties, and copies and replicas of the module compute with their own tensors. The
subclass has the name of the module's class, and is created again when a module is copied or unpickled.
"""

from __future__ import annotations

import copyreg
import functools
import types
from threading import get_ident
from typing import Any, SupportsIndex

import torch

from tridal.pytorch.device_context import device_context, is_served, log
from tridal.pytorch.torch import private

FORM = "_tridal_form"
"""The attribute of a replaced module that holds what it computes. Without it, the module computes as its class."""

COMPARING: list[int] = []
"""The threads that compare. tridal's functions compute on every device in them, by torch if necessary."""


def is_traced() -> bool:
    """Returns whether TorchScript traces. Modules then compute as before, so that a traced program needs no tridal."""
    return not torch.compiler.is_dynamo_compiling() and torch.jit.is_tracing()  # type: ignore


def torch_computes(device: torch.device) -> bool:
    """Returns whether modules and losses compute as before: no backend serves a device, or TorchScript traces."""
    if torch.compiler.is_dynamo_compiling():
        return not is_served(device.type)
    return is_traced() or (device_context(device).torch_computes and get_ident() not in COMPARING)


class Replacement:
    """Base class of all replacements. A subclass is the first base of the class of a replaced module."""

    _tridal_form: Any = None
    _tridal_base: Any = None
    """The class of the module before it was replaced."""
    _tridal_forward: Any = None
    """The forward that this class had when it was replaced."""
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


def replaced_class(kind: Any, base: Any) -> Any:
    """Returns the subclass of a module's class with the forward of a replacement."""
    return _replaced_class(kind, base, base.forward)


@functools.cache
def _replaced_class(kind: Any, base: Any, replaced: Any) -> Any:
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = kind.forward
    forward = types.FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    functools.update_wrapper(forward, replaced)  # callers inspect the signature of a model's forward
    inherited = {f"_inherited_{name}": getattr(base, name).fget for name in kind.inherited_properties}
    ours = {"forward": forward, "_tridal_base": base, "_tridal_forward": staticmethod(replaced)}
    return type(base.__name__, (kind, base), {**names, **inherited, **ours})


def base_of(module: torch.nn.Module) -> Any:
    """Returns the class of a module, before it was replaced."""
    kind = type(module)
    return getattr(kind, "_tridal_base", None) or kind


def class_name(module: torch.nn.Module) -> str:
    """Returns the name of a module's class. For a module that TorchScript has compiled, it is the original class."""
    name = getattr(module, "original_name", None) if isinstance(module, torch.jit.ScriptModule) else None
    return name or type(module).__name__


def is_patched(module: Any) -> bool:
    """Returns whether a program has changed the forward of a class after a module was replaced. Logs it once."""
    if module._tridal_base.forward is module._tridal_forward:
        return False
    if not torch.compiler.is_dynamo_compiling():
        log_changed(type(module).__name__, "forward")
    return True


@functools.cache
def log_changed(kind: str, name: str) -> None:
    """Logs once that modules compute as their class, because a program has changed what was compared."""
    log.warning(
        "%s uses the forward of its class, because the program has changed %s since kernelize. To compare it again, "
        "call tridal.models.restore(model) and tridal.kernelize(model)", kind, name,
    )  # fmt: skip


def origin(function: Any) -> str:
    """Returns the module and the name of a function that may have copied both from the function that it wraps."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        return f"{function.__globals__['__name__']}.{function.__code__.co_name}"
    return f"{type(function).__module__}.{type(function).__qualname__}"


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
        if issubclass(kind, Replacement) and not issubclass(kind, torch.nn.Module):  # that of `replaced_class`
            (module.__class__,) = bases


def is_replaced(module: torch.nn.Module) -> bool:
    """Returns whether tridal computes a module, as far as it can."""
    return isinstance(module, Replacement) and FORM in module.__dict__


def hooks_of(module: Any) -> list[Any]:
    """The hooks that run in a call of a module, including those registered for all modules."""
    own = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return [hook for hooks in (*own, *private.GLOBAL_HOOKS) for hook in hooks.values()]


def is_called(module: Any) -> bool:
    """Returns whether a call of a module is a call of its class's forward: no hook reads or changes the result."""
    return not hooks_of(module) and getattr(module.forward, "__func__", None) is type(module).forward


class Layer(Replacement):
    """The forward of a module that takes tensors, such as a norm or an activation. The form computes it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output. The module's class computes what its form does not."""
        form = None if kwargs else self._tridal_form
        if form is None or len(args) != form.inputs or not form.computes(self, args[0]):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        result = form.compute(self, *args)
        return result if result is not None else super().forward(*args, **kwargs)  # type: ignore[misc]


class Rewritten(Replacement):
    """The forward of a module that runs the code of its class, in which tridal computes a part."""

    def _tridal_rewritten(self, forward: Any) -> Any:
        """Returns the forward of the class with tridal's part."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the class's forward. A compiler gets the code of the class, which it fuses."""
        if torch.compiler.is_dynamo_compiling() or self._tridal_form is None:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        forward: Any = super().forward  # type: ignore[misc]
        if not isinstance(forward, types.MethodType) or is_patched(self):
            return forward(*args, **kwargs)
        return self._tridal_rewritten(forward.__func__)(self, *args, **kwargs)
