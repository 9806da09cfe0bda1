"""Compares a function with `tridal.rotary_embedding`: which elements it rotates, and how it rounds.

The function is called with random tensors. Its results and gradients decide which elements are pairs, whether cos and
sin have a number for each element or for each pair, and where the heads are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch

from tridal.library.rotary.rotary import ROTARY_EMBEDDING
from tridal.models.comparison import CASTINGS, NARROW, Pair, error, rounding, tolerance_of, with_gradients
from tridal.models.reads import Form
from tridal.ops import row_math

Tensor = torch.Tensor
Rotate = Callable[..., Any]
"""A function of query and key, or of one of them, and of cos and sin."""
_TOLERANCE = tolerance_of(torch.float32)
"""The largest error of float64 tensors, which some functions compute in float32."""
_DIFFERS = "its rotary embedding differs from tridal.rotary_embedding"
_BATCH, _HEADS, _LENGTH, _DIM = 2, 3, 8, 64
"""The sizes of a query in the comparison. A key has one head."""
_PAIRS = ((False, False), (True, False), (True, True))
"""`interleaved` and `to_halves`."""


class Dims(NamedTuple):
    """The dims of the tensors of a function."""

    rank: int
    """The number of dims of query and key."""
    heads: int
    """The dim of the heads."""
    of_cos: int
    """The number of dims of cos and sin."""


_UNSQUEEZES = Dims(4, 1, 3), Dims(4, 2, 3)
"""Those of a function with the argument `unsqueeze_dim`, whose default is 1."""
_FIXED = Dims(3, 1, 2), Dims(4, 1, 2), Dims(4, 2, 2), Dims(4, 2, 3)
"""Those of other functions, for example for [length, heads, dim] of vision models."""


class Parameters(NamedTuple):
    """The parameters of a function."""

    tensors: tuple[str, ...]
    """The names of the tensors, of which two are "cos" and "sin"."""
    unsqueezes: bool
    """Whether it has the argument `unsqueeze_dim`."""

    @property
    def rotated(self) -> list[str]:
        """The names of query and key, or of one tensor."""
        return [name for name in self.tensors if name not in ("cos", "sin")]


@dataclass(frozen=True)
class RotaryForm(Form):
    """The rotary embedding that an attention computes."""

    name: str
    """The name of the function in the Python module of the attention's class."""
    casting: str = ""
    keep_dtype: bool = False
    interleaved: bool = False
    to_halves: bool = False
    factor: str = "element"
    """Where cos and sin have the number of an element: "element", "pair" for one of each pair, or "first half" for one
    of each pair in their first half."""
    dims: Dims = _UNSQUEEZES[0]
    partial: bool = False
    """Whether the function rotates the first elements if cos has fewer than query."""

    def __str__(self) -> str:
        casting = f", casting={self.casting!r}" if self.casting else ""
        options = ("keep_dtype", "interleaved", "to_halves")
        return f"tridal.rotary_embedding{casting}" + "".join(
            f", {name}=True" for name in options if getattr(self, name)
        )

    def size(self, cos: Tensor) -> int:
        """The number of elements that cos rotates."""
        return cos.shape[-1] * (2 if self.factor == "pair" else 1)

    def factors(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, int | None]:
        """Returns cos, sin and `rotary_dim` for `tridal.rotary_embedding`."""
        if self.factor == "element":
            return cos, sin, None
        size = self.size(cos)
        half = cos.shape[-1] if self.factor == "pair" else size // 2
        return cos[..., :half], sin[..., :half], size


def parameters_of(function: Rotate) -> Parameters | None:
    """Reads the parameters of a rotary function, or returns None if it has others."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):  # `kernels` wraps functions, whose names are unknown
        return Parameters(("q", "k", "cos", "sin"), True)
    named = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [p.name for p in named]
    tensors = tuple(names[: 1 + max((names.index(name) for name in ("cos", "sin") if name in names), default=-1)])
    others = {p.name: p.default for p in parameters if p.name not in tensors and p.kind is not p.VAR_KEYWORD}
    unsqueezes = others.pop("unsqueeze_dim", None) is not None or any(p.kind is p.VAR_KEYWORD for p in parameters)
    fits = {"cos", "sin"} < {*tensors} and len(tensors) in (3, 4) and not any(v is not None for v in others.values())
    return Parameters(tensors, unsqueezes) if fits else None


def compare(function: Rotate, name: str) -> RotaryForm | str:
    """Returns the rotary embedding that a function computes, or how it differs.

    Raises:
        Exception: the function cannot be called with query, key, cos and sin.
    """
    parameters = parameters_of(function)
    assert parameters is not None
    errors, raised = [], None
    for form in _forms(name, parameters):
        try:
            errors.append(_error(function, parameters, form))
        except Exception as reason:  # the function has other dims, or another number of cosines
            raised = raised or reason
            continue
        if errors[-1] <= _TOLERANCE:
            return _with_dtypes(function, parameters, form)
    if raised is not None and not errors:
        raise raised
    return f"{_DIFFERS} by {min(errors):.1e}"


def _forms(name: str, parameters: Parameters) -> Iterator[RotaryForm]:
    all_dims = _UNSQUEEZES[:1] if parameters.unsqueezes else _FIXED
    for dims, factor, (interleaved, to_halves) in product(all_dims, ("element", "first half", "pair"), _PAIRS):
        yield RotaryForm(name, interleaved=interleaved, to_halves=to_halves, factor=factor, dims=dims)


def _error(function: Rotate, parameters: Parameters, form: RotaryForm, part: int = 1) -> float:
    return max(error(*pair) for pair in _pairs(function, parameters, form, torch.float64, torch.float64, part))


def _with_dtypes(function: Rotate, parameters: Parameters, form: RotaryForm) -> RotaryForm | str:
    """Returns the form with what the function does for other shapes and dtypes, or how it differs."""
    if parameters.unsqueezes:
        other = replace(form, dims=_UNSQUEEZES[1])
        if not _error(function, parameters, other) <= _TOLERANCE:
            return f"{_DIFFERS} for unsqueeze_dim=2"
    try:
        form = replace(form, partial=_error(function, parameters, form, part=2) <= _TOLERANCE)
    except Exception:  # it rotates all elements
        form = replace(form, partial=False)
    else:
        if not form.partial:
            return f"{_DIFFERS}: it does not rotate the first elements if cos has fewer than query"
    if not parameters.unsqueezes and _takes_more_tokens(function, parameters, form):
        return f"{_DIFFERS}: it does not rotate all tokens"
    return _with_casting(function, parameters, form)


def _with_casting(function: Rotate, parameters: Parameters, form: RotaryForm) -> RotaryForm | str:
    """Returns the form with the dtype and the rounding of the results, or how they differ."""
    reason, raised = f"{_DIFFERS} in 16-bit dtypes: the order of rounding differs", None
    for keep, casting in product((False, True), CASTINGS):
        found = replace(form, keep_dtype=keep, casting=casting)

        def rounds_alike(other: torch.dtype | None, found: RotaryForm = found) -> bool:
            """Whether the results for cos and sin of a dtype, by default query's, are the same."""
            count = len(parameters.rotated)
            return all(
                error(*pair) <= _TOLERANCE if pair[0].dtype is torch.float32 else rounding(*pair) is None
                for dtype in NARROW
                for pair in _pairs(function, parameters, found, dtype, other or dtype)[:count]
            )

        try:
            if rounds_alike(None):
                if rounds_alike(torch.float32):
                    return found
                reason = f"{_DIFFERS} for wider cos and sin"
        except TypeError as other_dtype:
            raised = raised or other_dtype
    if raised is not None and reason.endswith("differs"):
        raise raised
    return reason


def _takes_more_tokens(function: Rotate, parameters: Parameters, form: RotaryForm) -> bool:
    try:
        _call(function, parameters, form.dims, *_tensors(parameters, form, torch.float32, torch.float32, more=1))
    except Exception:
        return False
    return True


def _tensors(
    parameters: Parameters, form: RotaryForm, dtype: torch.dtype, other: torch.dtype, part: int = 1, more: int = 0
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Returns query and key, or one of them, cos and sin.

    cos and sin, of the dtype `other`, rotate a `part` of the elements. Query and key have some `more` tokens.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    rank, heads, of_cos = form.dims
    batch, length = (_BATCH,) * (rank - 3), _LENGTH + more
    sizes = [(count, length) if heads == rank - 3 else (length, count) for count in (_HEADS, 1)]
    rotated = [
        torch.randn((*batch, *size, _DIM), generator=generator, device="cpu").to(dtype).requires_grad_()
        for size in sizes[: len(parameters.rotated)]
    ]
    width = _DIM // part // (2 if form.factor == "pair" else 1)
    shape = (*(_BATCH,) * (of_cos - 2), _LENGTH, width)
    cos, sin = (torch.randn(shape, generator=generator, device="cpu").to(other) for _ in range(2))
    return rotated, cos, sin


def _call(
    function: Rotate, parameters: Parameters, dims: Dims, rotated: list[Tensor], cos: Tensor, sin: Tensor
) -> list[Tensor]:
    given = {**dict(zip(parameters.rotated, rotated, strict=True)), "cos": cos, "sin": sin}
    options = {"unsqueeze_dim": dims.heads} if parameters.unsqueezes and dims.heads != 1 else {}
    results = function(*(given[name] for name in parameters.tensors), **options)
    return [results] if isinstance(results, Tensor) else [*results]


def _pairs(
    function: Rotate, parameters: Parameters, form: RotaryForm, dtype: torch.dtype, other: torch.dtype, part: int = 1
) -> list[Pair]:
    """Returns results and gradients of tridal and of the function. `other` is the dtype of cos and sin."""
    rotated, cos, sin = _tensors(parameters, form, dtype, other, part)
    results = _call(function, parameters, form.dims, rotated, cos, sin)
    query, key = (*rotated, None)[:2]
    cos, sin, rotary_dim = form.factors(cos, sin)
    options = form.casting, form.keep_dtype, form.interleaved, form.to_halves
    computed = row_math.compute(ROTARY_EMBEDDING, query, key, cos, sin, rotary_dim, form.dims.heads, *options)
    ours: Any = [y for y in computed if y is not None]
    for y, expected in zip(results, ours, strict=True):
        if y.shape != expected.shape or y.dtype is not expected.dtype:
            given = f"for a query of {dtype} with cos and sin of {other}"
            found = f"{y.dtype} of shape {list(y.shape)}, and tridal.rotary_embedding"
            raise TypeError(f"{given}, it returns {found} {expected.dtype} of shape {list(expected.shape)}")
    return list(zip(with_gradients(ours, rotated), with_gradients(results, rotated), strict=True))
