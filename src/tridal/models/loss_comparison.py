"""Compares the loss of a language model with tridal's: on random logits, and on a copy of the model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.models.causal_lm import CausalLM, CausalLMForm
from tridal.models.comparison import difference, plain_mode, with_gradients
from tridal.models.losses import Head, causal_lm_loss
from tridal.models.replacements import FORM, replaced_class

Tensor = torch.Tensor
HIDDEN = 8
"""The size of the input of the head in the comparison."""


def find_difference(loss: Callable[..., Tensor]) -> str | None:
    """Returns how a loss function differs from tridal's, or None if it computes the same."""
    logits = torch.randn(2, 5, 11, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    labels = torch.tensor([[1, 2, -100, 4, 10], [0, -100, 3, 3, 7]], device="cpu")
    five = torch.tensor(5, device="cpu")
    functions = loss, functools.partial(causal_lm_loss, loss)
    with plain_mode("cpu"):
        for dtype, number in ((torch.float32, None), (torch.float32, five), (torch.bfloat16, None)):
            results = []
            for function in functions:
                x = logits.to(dtype, copy=True).requires_grad_()
                value = function(logits=x, labels=labels, vocab_size=11, num_items_in_batch=number)
                results.append(with_gradients(value, [x]))
            tolerance = 1e-5 if dtype is torch.float32 else 2e-2
            if (reason := _difference(results[0], results[1], tolerance)) is not None:
                return reason
    return None


def find_fused(model: Any, head: torch.nn.Module | None) -> tuple[str, float | None] | str:
    """Returns the name of the head and the softcap of its logits, or why the loss of a model cannot be fused.

    A copy of the model computes a loss of random numbers with and without tridal. Its head has a small input, and its
    other modules return the random input of the head. This shows whether the model changes the logits.
    """
    name = next((name for name, child in model._modules.items() if child is head), None)
    if head is None or name is None:
        return "it has no output layer, or it is skipped"
    if not isinstance(head, torch.nn.Linear) or type(head).forward is not torch.nn.Linear.forward:
        return f"{name}, a {type(head).__qualname__}, does not have the forward of torch.nn.Linear"
    with torch.random.fork_rng([]), plain_mode("cpu"), torch.device("cpu"):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed accelerators too
        hidden, small = torch.randn(1, 5, HIDDEN), torch.nn.Linear(HIDDEN, head.out_features, head.bias is not None)
        torch.nn.init.normal_(small.weight)
        softcaps: list[float | None] = []
        try:
            expected = _results(model, name, hidden, small)
            reason = _difference(expected, _results(model, name, hidden, small, softcaps), 1e-3)
            if reason is None and softcaps:
                return name, softcaps[0]
            reason = reason or "it reads or changes the logits"
        except Exception as raised:  # the model's own code may raise any exception without its other modules
            reason = f"{type(raised).__name__}: {raised}".split("\n")[0]
    return f"the model does not compute its loss from {name} alone: {reason}"


class _Hidden:
    """The output of a module that is not compared: the input of the head, and nothing else."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Any:
        return self.hidden if index == 0 else None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Constant(torch.nn.Module):
    """Returns the same output for every input. Its submodules are the module itself."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.output = _Hidden(hidden)

    def __getattr__(self, name: str) -> Any:
        return self

    def forward(self, *_: Any, **__: Any) -> _Hidden:
        return self.output


class _Recorder(Head):
    softcaps: list[float | None]

    def forward(self: Any, input: Tensor, request: Any = None) -> Tensor:
        if request is not None:
            self.softcaps.append(request.softcap)
        return super().forward(input, request)


def _results(model: Any, name: str, hidden: Tensor, head: Any, softcaps: Any = None) -> list[Tensor]:
    """Returns the loss of a copy of the model, and its gradients of hidden and weight.

    The loss is fused if there is a list for the softcaps of fused losses.
    """
    hidden = hidden.detach().requires_grad_()
    base: Any = type(model)
    kind = base if softcaps is None else replaced_class(CausalLM, base)
    copy = object.__new__(kind)
    copy.__dict__.update(model.__dict__)
    copy._modules = {child: _Constant(hidden) for child, module in model._modules.items() if module is not None}
    small: Any = torch.nn.Linear(HIDDEN, head.out_features, device="meta")
    small.weight, small.bias, copy.training, copy._modules[name] = head.weight, head.bias, True, small
    if softcaps is not None:
        copy.__dict__[FORM] = CausalLMForm(model.loss_function, name)
        small.__class__, small.softcaps = replaced_class(_Recorder, torch.nn.Linear), softcaps
    labels = torch.tensor([[1, 2, -100, 0, 3]])
    takes = inspect.signature(base.forward).parameters
    options = {"output_router_logits": False} if "output_router_logits" in takes else {}  # routers are not compared
    loss = kind.forward(copy, input_ids=labels.clamp(min=0), labels=labels, **options).loss
    return with_gradients(loss, [hidden, head.weight])


def _difference(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> str | None:
    names = "the loss", "the gradient", "the gradient of the weight"
    row_dims = [tensor.dim() for tensor in expected]
    return difference(zip(names, found, expected, row_dims, strict=False), tolerance)
