"""The registered ops, `torch.ops.tridal.*`: opaque to compilers, visible to modes, subclasses and transforms.

`define` registers an op and its gradient. Each has one kernel for all devices, a fake kernel, an autograd rule and a
vmap rule. The kernel selects the backend at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tridal.errors import PluginError
from tridal.ops.row_reduce import has_tangent
from tridal.ops.signature import Signature
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.path.nodes import OpNode, as_tuple, has_gradient, is_plain, records_gradient
from tridal.pytorch.path.rules import DEFINED, OpRun, Results, Rules, overload
from tridal.pytorch.path.vmap import vmap_rule
from tridal.pytorch.torch import private

Tensor = torch.Tensor
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
LIBRARY: Any = torch.library.Library("tridal", "DEF")  # type: ignore[no-untyped-call]
ON_DEFINE: list[Callable[[Rules], None]] = []
"""Functions that `define` calls with the rules of each new op."""


def define(rules: Rules) -> None:
    """Registers an op, and its gradient if it has one.

    Raises:
        PluginError: another op has its name.
    """
    op = rules.op
    signatures = (op.signature, op.gradient_signature) if op.gradient is not None else (op.signature,)
    for declaration in (op, *signatures):
        _compute_properties(declaration)
    for signature in signatures:
        if hasattr(torch.ops.tridal, signature.name):  # an op, an alias, or an attribute that torch adds
            raise PluginError(f"op {op.name!r} cannot be used: torch.ops.tridal.{signature.name} already exists")
    _register(op.signature, rules.compute, rules.fake, rules.by_torch, rules)
    if op.gradient is not None:
        _register(op.gradient_signature, rules.backward, rules.fake_backward, rules.backward_by_torch, None)
    DEFINED[op.name] = rules
    for function in ON_DEFINE:
        function(rules)


def _compute_properties(declaration: Any) -> None:
    """Computes all cached properties, because torch.compile cannot trace the lock of the first access (Python 3.11)."""
    for name, value in vars(type(declaration)).items():
        if isinstance(value, functools.cached_property):
            getattr(declaration, name)


def _register(signature: Signature, compute: OpRun, fake: OpRun, by_torch: OpRun, rules: Rules | None) -> None:
    """Registers one op. Without `rules`, autograd differentiates `by_torch`."""
    name = signature.name

    def filled(results: Results, arguments: tuple[Any, ...]) -> Any:
        """Returns the results of the registered op, which has an empty tensor for each absent one."""
        like = next(argument for argument in arguments if isinstance(argument, torch.Tensor))
        found = tuple(like.new_empty(0) if result is None else result for result in results)
        return found[0] if len(found) == 1 else found

    @private.skip_frames
    def kernel(*arguments: Any) -> Any:
        arguments = signature.complete(arguments)
        return filled(compute(*arguments), arguments)

    def fake_kernel(*arguments: Any) -> Any:
        arguments = signature.complete(arguments)
        return filled(fake(*arguments), arguments)

    @private.skip_frames
    def autograd(*arguments: Any) -> Any:
        arguments = signature.complete(arguments)
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        differentiated = records_gradient(*tensors) and (rules is None or rules.op.differentiable_results > 0)
        if not differentiated and not private.needs_dispatcher() and all(map(is_plain, tensors)):
            return kernel(*arguments)
        covered = rules is None or has_gradient(rules.op, arguments)
        by_node = rules is not None and covered and private.HAS_NODES
        by_kernel = private.HAS_NODES and (not differentiated or (by_node and not private.transforms_active()))
        if not by_kernel or is_dual(*tensors):
            if RECORDERS:
                derivatives = "higher-order, forward-mode and transformed derivatives use torch's ops"
                record_torch(name, tensors[0], derivatives if covered else "one of the gradients has no kernel")
            return filled(by_torch(*arguments), arguments)
        if differentiated:
            results = private.apply_node(OpNode, rules, overload(name), *arguments)
            return results[0] if len(results) == 1 else results
        with private.below_autograd():
            return overload(name)(*arguments)

    LIBRARY.define(f"{name}{signature.schema}", tags=TAGS)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    LIBRARY.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"tridal::{name}", fake_kernel, lib=LIBRARY)
    vmap = vmap_rule(signature, overload(name), fake, lambda *given: as_tuple(filled(by_torch(*given), given)))
    torch.library.register_vmap(f"tridal::{name}", vmap, lib=LIBRARY)


def is_dual(*tensors: Tensor) -> bool:
    """Returns whether one of the tensors has a tangent of forward-mode AD.

    A check of the forward-mode AD level is not sufficient, because compiled torch.func transforms do not set the level.
    """
    return (private.forward_ad_level() >= 0 or private.transforms_active()) and has_tangent(*tensors, level=0)


def on_dispatch(op: str, kind: type, rule: Callable[..., Any]) -> None:
    """Registers rule(kind, op, types, args, kwargs) for the tensor subclass `kind`, which has `__torch_dispatch__`."""
    torch.library.register_torch_dispatch(f"tridal::{op}", kind, rule, lib=LIBRARY)
