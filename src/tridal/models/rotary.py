"""Replaces the rotary embedding of an attention module by `tridal.rotary_embedding`, if it is the same.

An attention class of transformers calls a function of its Python module. A replaced attention runs the code of its
class, in which the name of this function stands for tridal's. The function is compared. The attention is not called.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal.library.rotary.functions import factors_of, halves_of, rotary_embedding
from tridal.library.rotary.rotary import ROTARY_EMBEDDING
from tridal.models.activations import TOLERANCE, difference
from tridal.models.norm_comparison import FLIPS, NARROW, plain_mode
from tridal.models.replacements import Replacement, torch_computes
from tridal.ops import row_maths

Tensor = torch.Tensor
Rotate = Callable[..., Any]
"""A function of query, key, cos, sin and optionally the dim of the heads, `unsqueeze_dim`."""
NAME = re.compile("rotary", re.IGNORECASE)
"""A name of a function that may be a rotary embedding. The comparison decides whether it is one."""
_CASTINGS = ("transformers", "")
_SIZES = (2, 3, 8, 64)
"""The sizes of a query in the comparison: batch, heads, length and dim. A key has one head."""


@dataclass(frozen=True)
class RotaryForm:
    """The rotary embedding that an attention computes."""

    name: str
    """The name of the function in the Python module of the attention's class."""
    casting: str

    def __str__(self) -> str:
        return "tridal.rotary_embedding" + (f", casting={self.casting!r}" if self.casting else "")


class Attention(Replacement):
    """The forward of an attention module with rotary embedding. The form says which function tridal replaces."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the class's forward. A compiler gets the function of the class, which it fuses."""
        forward: Any = super().forward  # type: ignore[misc]
        if self._tridal_form is None or torch.compiler.is_dynamo_compiling():
            return forward(*args, **kwargs)
        return _with_ours(forward.__func__, self._tridal_form)(self, *args, **kwargs)


def function_name(module: torch.nn.Module) -> str | None:
    """Returns the name of the function for a rotary embedding that a module's forward calls, or None."""
    forward = None if isinstance(module, (Replacement, torch.jit.ScriptModule)) else type(module).forward
    if not isinstance(forward, types.FunctionType):
        return None
    names = (name for name in forward.__code__.co_names if NAME.search(name))
    return next((name for name in names if callable(forward.__globals__.get(name))), None)


def find_form(module: torch.nn.Module) -> RotaryForm | str:
    """Returns the rotary embedding that a module with a `function_name` computes, or why it is another one."""
    forward: Any = type(module).forward
    name = function_name(module)
    assert name is not None
    found = _compare(forward.__globals__[name], name)
    if isinstance(found, RotaryForm):
        _with_ours(forward, found)  # remembers the function that was compared
    return found


@functools.cache
def _compare(function: Rotate, name: str) -> RotaryForm | str:
    """Returns the form of a function with this name, or how the function differs."""
    try:
        with plain_mode("cpu"):
            exact = [_results(function, dims, torch.float64, torch.float64, "") for dims in (1, 2)]
            error = max(difference(*pair) for pairs in exact for pair in pairs)
            if not error <= TOLERANCE:
                return f"its rotary embedding differs from tridal.rotary_embedding by {error:.1e}"
            wide = [pair for dtype in NARROW for pair in _results(function, 1, dtype, torch.float32, "")[:2]]
            if not max(difference(*pair) for pair in wide) <= TOLERANCE:
                return "its rotary embedding differs from tridal.rotary_embedding for wider cos and sin"
            for casting in _CASTINGS:
                pairs = [pair for dtype in NARROW for pair in _results(function, 1, dtype, dtype, casting)[:2]]
                if all(float((got != wanted).double().mean()) <= FLIPS for got, wanted in pairs):
                    return RotaryForm(name, casting)
    except Exception as error:  # the function may raise any exception for arguments that it does not expect
        return f"its rotary embedding raised {type(error).__name__} in the comparison: {error}".split("\n")[0]
    return "its rotary embedding differs from tridal.rotary_embedding in 16-bit dtypes: the order of rounding differs"


def _results(
    function: Rotate, heads: int, dtype: torch.dtype, other: torch.dtype, casting: str
) -> list[tuple[Tensor, Tensor]]:
    """Returns pairs of the function's and of tridal's query, key and gradients. `other` is the dtype of cos and sin."""
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu")

    batch, count, length, dim = _SIZES
    query, key = (random(batch, n, length, dim).to(dtype).requires_grad_() for n in (count, 1))
    cos, sin = (random(batch, length, dim).to(other) for _ in range(2))
    given = query, key
    if heads == 2:
        query, key = query.transpose(1, 2), key.transpose(1, 2)
    options = {} if heads == 1 else {"unsqueeze_dim": heads}
    factors, promoted, pairs = factors_of(cos, sin, heads), torch.promote_types(dtype, other), []
    for x, y in zip((query, key), function(query, key, cos, sin, **options), strict=True):
        ours = row_maths.compute(ROTARY_EMBEDDING, *halves_of(x, factors), -2, promoted, casting)[0]
        assert ours is not None
        ours = ours.flatten(-2)
        if y.shape != ours.shape or y.dtype is not ours.dtype:
            given_dtypes = f"for {dtype} of shape {list(x.shape)} with cos and sin of {other}"
            raise TypeError(f"it returned {y.dtype} of shape {list(y.shape)} {given_dtypes}")
        pairs.append((y, ours))
    gradients = [torch.autograd.grad([y.square().sum() for y in both], given) for both in zip(*pairs, strict=True)]
    return [(got.detach(), wanted.detach()) for got, wanted in (*pairs, *zip(*gradients, strict=True))]


@functools.cache
def _with_ours(forward: types.FunctionType, form: RotaryForm) -> Any:
    """Returns a function with the code of `forward`, in which the form's name stands for tridal's function."""
    if form.name not in forward.__code__.co_names:
        return forward  # another package has replaced the class's forward
    names = _Names(forward.__globals__, form.name, functools.partial(_rotate, forward.__globals__[form.name], form))
    made = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    return functools.update_wrapper(made, forward)


class _Names(dict[str, Any]):
    """The globals of a function, in which one name stands for something else until the program changes the global."""

    def __init__(self, names: dict[str, Any], replaced: str, value: Any) -> None:
        super().__init__()
        self._names, self._replaced, self._original, self._value = names, replaced, names[replaced], value

    def __getitem__(self, name: str) -> Any:
        found = self._names[name]
        return self._value if name == self._replaced and found is self._original else found


def _rotate(
    function: Rotate, form: RotaryForm, query: Any, key: Any, cos: Any, sin: Any, unsqueeze_dim: Any = 1, **options: Any
) -> Any:
    """Returns query and key with rotary embedding. The class's function computes what tridal does not."""
    plain = not options and unsqueeze_dim in (1, 2) and all(isinstance(x, Tensor) for x in (query, key, cos, sin))
    if plain and query.dim() == 4 and cos.shape[-1:] == query.shape[-1:] and not torch_computes(query.device):
        casting: Any = form.casting or None
        return rotary_embedding(query, key, cos, sin, unsqueeze_dim=unsqueeze_dim, casting=casting)
    return function(query, key, cos, sin, unsqueeze_dim, **options)
