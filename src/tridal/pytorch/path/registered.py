"""The registered ops, `torch.ops.tridal.*`: opaque to compilers, visible to modes, subclasses and transforms.

`define` registers an op and its gradient. Each has one kernel for all devices, a fake kernel, an autograd rule and a
vmap rule. The kernel selects the backend at run time. The vmap rule computes the op in torch's ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tridal.errors import PluginError
from tridal.ops.op import Op
from tridal.ops.row_reduce import has_tangent
from tridal.ops.signature import Arguments, Signature
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.path.call import Call, Results
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.defined import DEFINED, OVERLOADS, as_tuple, has_gradient, overload
from tridal.pytorch.path.node import CallNode
from tridal.pytorch.path.op_calls import compute_op, reference
from tridal.pytorch.path.state import is_plain, records_gradient
from tridal.pytorch.torch import private

Tensor = torch.Tensor
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
LIBRARY: Any = torch.library.Library("tridal", "DEF")  # type: ignore[no-untyped-call]
REGISTERED: list[Registered] = []
"""The registered ops, and those of gradients."""
ON_REGISTER: list[Callable[[Registered], None]] = []
"""Functions that get each new item of `REGISTERED`."""


def define(op: Op) -> None:
    """Registers an op, and its gradient if it has one. An op that is declared again replaces its former declaration.

    Raises:
        PluginError: another op of torch has its name.
    """
    signatures = (op.signature, op.gradient_signature) if op.gradient is not None else (op.signature,)
    for declaration in (op, *signatures):
        _compute_properties(declaration)
    for signature in signatures:
        known = any((registered.op, registered.name) == (op.name, signature.name) for registered in REGISTERED)
        if not known and hasattr(torch.ops.tridal, signature.name):  # an op, an alias, or an attribute that torch adds
            raise PluginError(f"op {op.name!r} cannot be used: torch.ops.tridal.{signature.name} already exists")
    for signature in signatures:
        _define(Registered(op.name, signature.name, signature.schema))
    DEFINED[op.name] = op


def _compute_properties(declaration: Any) -> None:
    """Computes all cached properties, because torch.compile cannot trace the lock of the first access (Python 3.11)."""
    for name, value in vars(type(declaration)).items():
        if isinstance(value, functools.cached_property):
            getattr(declaration, name)


class Registered(NamedTuple):
    """An op in `torch.ops.tridal` with one schema. It computes the newest declaration of its op."""

    op: str
    """The name of the op, also for its gradient."""
    name: str
    schema: str

    def newest(self, arguments: Sequence[Any]) -> tuple[Op, Arguments]:
        """Returns the newest declaration, and the arguments of its signature.

        Raises:
            PluginError: it has another schema.
        """
        op = DEFINED[self.op]
        signature: Signature = op.signature if self.name == self.op else op.gradient_signature
        if signature.schema != self.schema or (self.name != self.op and op.gradient is None):
            raise PluginError(f"op {self.op!r} was declared again with other arguments: trace its calls again")
        return op, Arguments(signature, arguments)

    @property
    def qualified(self) -> str:
        """The name with the overload, for torch.library."""
        earlier = [registered.schema for registered in REGISTERED if registered.name == self.name]
        number = [*earlier, self.schema].index(self.schema)
        return f"{self.name}.v{number}" if number else self.name


def _define(registered: Registered) -> None:
    """Registers an op of torch with a schema, unless it is known, and makes it the one that calls use."""
    qualified = registered.qualified
    if registered not in REGISTERED:
        _register(registered, qualified)
        REGISTERED.append(registered)
        for function in ON_REGISTER:
            function(registered)
    OVERLOADS.pop(registered.name, None)
    if qualified != registered.name:
        OVERLOADS[registered.name] = qualified.partition(".")[2]


def _register(registered: Registered, qualified: str) -> None:
    """Registers one op. Autograd differentiates the function of a gradient in torch's ops."""
    name, is_gradient = registered.name, registered.name != registered.op

    def filled(results: Results, arguments: Arguments) -> Any:
        """Returns the results of the registered op, which has an empty tensor for each absent one."""
        found = tuple(arguments.main.new_empty(0) if result is None else result for result in results)
        return found[0] if len(found) == 1 else found

    def computed(op: Op, arguments: Arguments) -> Any:
        return filled(compute_op(op, arguments), arguments)

    @private.skip_frames
    def kernel(*values: Any) -> Any:
        return computed(*registered.newest(values))

    def fake_kernel(*values: Any) -> Any:
        _, arguments = registered.newest(values)
        check_arguments(arguments)
        return filled(arguments.new_results(), arguments)

    def by_torch(op: Op, arguments: Arguments) -> Any:
        check_arguments(arguments)
        return filled(reference(op, arguments), arguments)

    @private.skip_frames
    def autograd(*values: Any) -> Any:
        op, arguments = registered.newest(values)
        tensors = [tensor for tensor in arguments.tensors if tensor is not None]
        differentiated = records_gradient(*tensors) and (is_gradient or op.differentiable_results > 0)
        if not differentiated and not private.needs_dispatcher() and all(map(is_plain, tensors)):
            return computed(op, arguments)
        covered = is_gradient or has_gradient(op, arguments)
        by_node = not is_gradient and covered and private.HAS_NODES
        by_kernel = private.HAS_NODES and (not differentiated or (by_node and not private.transforms_active()))
        if not by_kernel or is_dual(*tensors):
            if RECORDERS:
                derivatives = "higher-order, forward-mode and transformed derivatives use torch's ops"
                record_torch(name, tensors[0], derivatives if covered else "one of the gradients has no kernel")
            return by_torch(op, arguments)
        if differentiated:
            return _apply_node(op, arguments)
        with private.below_autograd():
            return overload(name)(*arguments.values)

    def batched(*values: Any) -> Any:
        if RECORDERS:
            tensor = next(value for value in values if isinstance(value, torch.Tensor))
            record_torch(name, tensor, "torch's ops compute calls under vmap")
        return by_torch(*registered.newest(values))

    LIBRARY.define(f"{qualified}{registered.schema}", tags=TAGS)
    LIBRARY.impl(qualified, kernel, "CompositeExplicitAutograd")
    LIBRARY.impl(qualified, autograd, "Autograd")
    LIBRARY.impl(qualified, batched, "FuncTorchBatched")
    torch.library.register_fake(f"tridal::{qualified}", fake_kernel, lib=LIBRARY)


def _apply_node(op: Op, arguments: Arguments) -> Any:
    """Computes a registered op below autograd, and records it in autograd."""
    dispatched, numbers = private.redispatched(overload(op.name)), arguments.numbers
    call = Call(lambda *tensors: as_tuple(dispatched(*Arguments.of(op.signature, tensors, numbers).values)))
    call.add_gradient(op, arguments, len(op.results))
    with private.single_level():
        return CallNode.apply(call, *arguments.tensors)


def is_dual(*tensors: Tensor) -> bool:
    """Returns whether one of the tensors has a tangent of forward-mode AD.

    A check of the forward-mode AD level is not sufficient, because compiled torch.func transforms do not set the level.
    """
    return (private.forward_ad_level() >= 0 or private.transforms_active()) and has_tangent(*tensors, level=0)


def on_dispatch(registered: Registered, kind: type, rule: Callable[..., Any]) -> None:
    """Registers rule(kind, op, types, args, kwargs) for the tensor subclass `kind`, which has `__torch_dispatch__`."""
    torch.library.register_torch_dispatch(f"tridal::{registered.qualified}", kind, rule, lib=LIBRARY)
