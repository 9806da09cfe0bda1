"""Replaces the router of a mixture of experts, as far as it follows the logits, by `tridal.route_top_k`.

A router has the weight of a linear layer, and returns the logits, the weights of the chosen experts and their indices.
torch multiplies by the weight, as before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn import functional

from tridal.library.router.functions import route_top_k
from tridal.models.reads import Form
from tridal.models.replacements import class_name, hooks_of
from tridal.pytorch.torch import private

Tensor = torch.Tensor
NAME = re.compile("Router|Gate$|Gating$")
"""A name of a class that may be a router. The comparison decides whether it is one."""
Results = tuple[Tensor, Tensor, Tensor]
"""The logits, the weights and the indices."""


class Dtypes(NamedTuple):
    """The dtypes of a call."""

    linear: torch.dtype
    """The dtype in which the input is multiplied by the weight."""
    logits: torch.dtype
    weights: torch.dtype


@dataclass(frozen=True)
class RouterForm(Form):
    """The router that a module computes."""

    k: int
    bias: str | None
    """The name of the parameter that is added to the logits, or None."""
    choice_bias: str | None
    """The name of the parameter or buffer with which experts are chosen, or None."""
    flattens: bool
    """Whether tokens are the only dim of the results. If not, the class computes inputs of more dims."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of `tridal.route_top_k`."""
    dtypes: Mapping[tuple[torch.dtype, torch.dtype], Dtypes] = field(default_factory=dict, hash=False)
    """By the dtypes of the input and of the weight. The class computes all others."""
    compiler_is_faster: ClassVar[bool] = False

    def compute(self, module: Any, x: Tensor, choice_bias: Tensor | None = None) -> Results | None:
        """tridal chooses experts for inputs for which it is known to choose the same."""
        weight, bias = (None if name is None else getattr(module, name, None) for name in ("weight", self.bias))
        if self.choice_bias is not None:
            choice_bias = getattr(module, self.choice_bias, None)
        given = [x, weight, *[bias] * (self.bias is not None), *[choice_bias] * self._has_choice_bias]
        if any(type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer) for tensor in given):
            return None  # a tensor is absent, or of a subclass such as DTensor
        dtypes = self.dtypes.get((x.dtype, weight.dtype))  # type: ignore[union-attr]
        if dtypes is None or not (x.dim() == 2 or self.flattens) or private.autocast_enabled(x.device.type):
            return None
        if any(map(hooks_of, module._modules.values())):  # a hook may read or change the scores
            return None
        logits = logits_of(x.flatten(0, -2) if self.flattens else x, weight, bias, dtypes)  # type: ignore[arg-type]
        return logits, *route_top_k(logits, self.k, bias=choice_bias, dtype=dtypes.weights, **self.options)

    @property
    def _has_choice_bias(self) -> bool:
        return self.choice_bias is not None or self.inputs == 2

    def describe(self, module: torch.nn.Module) -> str:
        """For which inputs the module's class computes."""
        dtype = module._parameters["weight"].dtype  # type: ignore[union-attr]
        own = "" if (dtype, dtype) in self.dtypes else f", and {str(dtype)[6:]} inputs"
        return f"it computes calls under autocast{own} itself"

    def __str__(self) -> str:
        shown = (f"{name}={f'{v:g}' if isinstance(v, float) else repr(v)}" for name, v in self.options.items())
        return ", ".join(["tridal.route_top_k", *shown, *["with a bias"] * self._has_choice_bias])


@dataclass(frozen=True)
class BiasedRouterForm(RouterForm):
    """The router of a module whose forward takes the input and the bias with which experts are chosen."""

    inputs: ClassVar[int] = 2


def logits_of(x: Tensor, weight: Tensor, bias: Tensor | None, dtypes: Dtypes) -> Tensor:
    """Returns the logits of a linear layer, computed and returned in these dtypes."""
    dtype = dtypes.linear
    bias = None if bias is None else bias.to(dtype)
    return functional.linear(x.to(dtype), weight.to(dtype), bias).to(dtypes.logits)


def may_be_router(module: torch.nn.Module) -> bool:
    """Returns whether a module has the name of a router, and a weight for each of several experts."""
    weight = module._parameters.get("weight")
    return bool(NAME.search(class_name(module))) and weight is not None and weight.dim() == 2
