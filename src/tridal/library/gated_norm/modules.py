"""The module of the gated RMSNorm."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from tridal.library.gated_norm.functions import gated_rms_norm
from tridal.library.gated_norm.gated_rms_norm import ACTIVATIONS, CASTINGS, GATED_RMS_NORM
from tridal.ops import check_bool, check_choice


class GatedRMSNorm(torch.nn.RMSNorm):
    """A torch.nn.RMSNorm with a gate, computed by `tridal.gated_rms_norm`, which describes the last three arguments.

    Example:
        >>> norm = tridal.nn.GatedRMSNorm(2).requires_grad_(False)
        >>> norm(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, -1.0]]))
        tensor([[ 0.6203, -0.3043]])
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Literal["silu", "sigmoid"] = "silu",
        gate_first: bool = False,
        casting: Literal["llama"] | None = None,
    ) -> None:
        check_choice(GATED_RMS_NORM.name, "activation", activation, ACTIVATIONS)
        check_bool(GATED_RMS_NORM.name, "gate_first", gate_first)
        check_choice(GATED_RMS_NORM.name, "casting", casting, CASTINGS)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.activation, self.gate_first, self.casting = activation, gate_first, casting

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        """The normalized x, multiplied by the activation of the gate."""
        return gated_rms_norm(
            x, gate, self.normalized_shape, self.weight, self.eps, activation=self.activation,
            gate_first=self.gate_first, casting=self.casting,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """torch's text, the activation, the order and the casting."""
        text = f"{super().extra_repr()}, activation={self.activation!r}" + ", gate_first=True" * self.gate_first
        return text + (f", casting={self.casting!r}" if self.casting else "")
