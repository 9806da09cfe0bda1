"""Replaces the product of experts, activation(gate) * up, by `tridal.swiglu` or `tridal.geglu`, if it is the same.

transformers multiplies the weights of all experts at once, and calls a method of their class for the product between
both multiplications. This method is compared, as the product of a gated MLP. The experts are not called.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from tridal.models import glu
from tridal.models.comparison import find
from tridal.models.glu_parts import Roles, parts_of
from tridal.models.reads import Recorder
from tridal.models.replacements import Replacement

Tensor = torch.Tensor
NAME = re.compile("expert", re.IGNORECASE)
"""A name of a class for experts of a mixture."""
GATE = "_apply_gate"
"""transformers' name of the method."""
_ROLES: tuple[Roles] = (("gate_up", None, "down"),)
"""The names of the layers before and after the method in the comparison."""


class Experts(Replacement):
    """The product of experts. The class multiplies with the weights of the experts."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the class's forward, which calls `_apply_gate`."""
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def _apply_gate(self, gate_up: Tensor) -> Any:
        form = self._tridal_form
        if form is None or not form.computes(self, gate_up):
            return super()._apply_gate(gate_up)  # type: ignore[misc]
        return form.product(self, gate_up, None)


def may_be_experts(module: torch.nn.Module) -> bool:
    """Returns whether a module has the weights of several experts: tensors with a dim of experts."""
    own = (parameter for parameter in module._parameters.values() if parameter is not None)
    return bool(NAME.search(type(module).__name__)) and any(parameter.dim() > 1 for parameter in own)


def find_form(module: Any) -> glu.GluForm | str:
    """Returns the product of both halves that experts compute, or why they compute another one."""
    implementation = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if not hasattr(type(module), GATE) or not getattr(module, "has_gate", False):
        return f"tridal computes the product of experts whose class has the method {GATE} of transformers, and a gate"
    if implementation == "eager":
        return f"its experts_implementation is 'eager', which does not call {GATE}"
    parts = parts_of(module)
    return parts if isinstance(parts, str) else find("experts", _compare, module, torch.device("cpu"))


def _compare(recorder: Recorder, module: torch.nn.Module, device: torch.device) -> glu.GluForm | str:
    parts: Any = parts_of(module)
    return glu.compare(recorder, module, parts, _ROLES, _as_gated_mlp)


def _as_gated_mlp(experts: Any, layers: dict[str, Any], x: Tensor) -> Tensor:
    return layers["down"](experts._apply_gate(layers["gate_up"](x)))  # type: ignore[no-any-return]
