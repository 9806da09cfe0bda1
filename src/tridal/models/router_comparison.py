"""Compares routers with `tridal.route_top_k`.

A copy of the module is called with tokens that select a column of the weight, so that the logits of a token are exact
in all dtypes, and differ from each other. Some are so small that they show what is added to a sum of scores.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.library.router.route_top_k import GROUP_SCORES, ROUTE_TOP_K, SCORES, weights_of
from tridal.models.comparison import NARROW, difference, find, in_both_modes, nearest, rounding, with_gradients
from tridal.models.reads import Different, Recorder
from tridal.models.routers import BiasedRouterForm, Dtypes, RouterForm, logits_of
from tridal.ops import row_math

Tensor = torch.Tensor
_TOLERANCE = 1e-5
"""The largest relative difference of float32 weights, whose sums may be computed in another order."""
_OFFSETS = (0.0, -12.0, -36.0, -120.0)
"""Added to the logits of a token. The sigmoids of the last ones are zero in float32."""
_EPS = (0.0, 1e-20, 1e-12, 1e-9, 1e-6)
"""Numbers that are added to sums of scores."""
_TOKENS, _DENSE = 40, 8
_BIAS = "bias"
"""The name of the bias of the linear layer."""


def find_form(module: torch.nn.Module) -> RouterForm | str:
    """Returns the router that a module computes, or why it computes another one."""
    if inside := [name for name, child in module._modules.items() if child is not None and not _is_function(child)]:
        return f"it has the modules {', '.join(inside)} beside its weight, and a router has none with parameters"
    parameters = [*inspect.signature(type(module).forward).parameters.values()][1:]
    if len(parameters) not in (1, 2) or any(
        p.default is not p.empty or p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters
    ):
        return f"its forward takes ({', '.join(p.name for p in parameters)}), and a router takes a tensor, and a bias"
    given = [
        name for own in (module._parameters, module._buffers) for name, tensor in own.items() if tensor is not None
    ]
    others = [name for name in given if name not in ("weight", _BIAS)]
    if len(others) + len(parameters) > 2:
        return f"it has the tensors {', '.join(others)} beside its weight, and a router has a bias"
    return find("router", _compare, module, torch.device("cpu"), len(parameters) == 2, *others)


def _is_function(module: torch.nn.Module) -> bool:
    """Returns whether a module has no state, as an activation has none."""
    return not (module._modules or module._parameters or module._buffers)


def _compare(recorder: Recorder, device: torch.device, takes_bias: bool, *others: str) -> RouterForm | str:
    """Returns the router that calls of copies of a module compute."""
    recorder.passed |= {*others}
    calls = _Calls(recorder, takes_bias, *others)
    wide = torch.float32, torch.float32
    logits, weights, indices = in_both_modes(recorder, lambda: calls.call(*wide))
    dtypes, k = calls.dtypes(*wide), indices.shape[-1]
    kind = BiasedRouterForm if takes_bias else RouterForm
    form = kind(k, calls.bias, others[0] if others else None, calls.flattens, dtypes={wide: dtypes})
    errors: dict[RouterForm, list[float]] = {}
    for chosen in _choices(recorder.module, calls.experts, k):
        scores, found = _reference(logits, k, calls.choice_bias, torch.float32, chosen)
        same = bool(torch.equal(found[calls.shown], indices[calls.shown].long()))
        for options in _weightings(recorder.module, k):
            computed = weights_of(scores, **{"normalize": False, "eps": 0.0, "scaling_factor": 1.0, **options})
            error = _error(computed, weights) if same else torch.inf
            errors[replace(form, options={**chosen, **options})] = [error]
    form = nearest("router", errors, _TOLERANCE)
    if (reason := calls.gradients_differ(form)) is not None:
        return reason
    pairs = ((x, weight) for x in NARROW for weight in (x, torch.float32))
    narrow = {pair: known for pair in pairs if (known := calls.narrow(form, *pair)) is not None}
    return replace(form, dtypes={**form.dtypes, **narrow})


def _choices(module: Any, experts: int, k: int) -> Iterator[dict[str, Any]]:
    """Yields the arguments with which experts may be chosen, by the attributes of a module."""
    numbers = {v for name, v in vars(module).items() if "group" in name and type(v) is int and 1 <= v <= experts}
    pairs = [(g, t) for g, t in itertools.product(sorted(numbers), repeat=2) if g > 1 and experts % g == 0 and t <= g]
    groups: list[dict[str, Any]] = [{}]
    for (g, t), by in itertools.product(pairs, GROUP_SCORES):
        if experts // g * t >= k and (by == "max" or experts > g):
            groups.append({"groups": g, "top_groups": t, "group_score": by})
    for score, given in itertools.product(SCORES, groups):
        yield ({} if score == "softmax" else {"score": score}) | given


def _weightings(module: Any, k: int) -> Iterator[dict[str, Any]]:
    """Yields the arguments with which weights may be computed from scores, by the attributes of a module."""
    numbers = {name: float(v) for name, v in vars(module).items() if type(v) in (int, float) and v > 0}
    factors = [1.0, *(v for name, v in numbers.items() if "scal" in name), 1 / k]
    added = [*_EPS, *(v for name, v in numbers.items() if "eps" in name)]
    for factor in dict.fromkeys(factors):
        scaled = {} if factor == 1 else {"scaling_factor": factor}
        yield scaled
        yield from ({"normalize": True, **({"eps": eps} if eps else {}), **scaled} for eps in dict.fromkeys(added))


def _reference(
    logits: Tensor, k: int, bias: Tensor | None, dtype: torch.dtype, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """Computes the op by its reference in torch's ops."""
    given = {"input": logits, "bias": bias, "k": k, "dtype": dtype, **options}
    found = row_math.compute(ROUTE_TOP_K, *(given.get(a.name, a.default) for a in ROUTE_TOP_K.signature.arguments))
    weights, indices = found
    assert weights is not None
    assert indices is not None
    return _in_order(weights, indices)


def _in_order(weights: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the chosen experts in the order of their indices. torch.topk may return them in any order."""
    indices, order = indices.sort(-1)
    return weights.gather(-1, order), indices


def _error(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference of weights, relative to the largest one of the token. Two NaN do not differ."""
    scale = expected.abs().nan_to_num(0.0).amax(-1, keepdim=True)
    same = (found == expected) | (found.isnan() & expected.isnan())
    apart = ((found - expected).abs() / scale).nan_to_num(torch.inf)
    return float(torch.where(same, 0.0, apart).max())


class _Calls:
    """Calls of copies of a router."""

    def __init__(self, recorder: Recorder, takes_bias: bool, *others: str) -> None:
        module = recorder.module
        self.experts: int
        self.hidden: int
        self.experts, self.hidden = module._parameters["weight"].shape  # type: ignore[union-attr]
        self.bias = _BIAS if module._parameters.get(_BIAS) is not None else None
        self._recorder, self._takes_bias, self._others = recorder, takes_bias, others
        generator = torch.Generator("cpu").manual_seed(0)
        count = min(_TOKENS, self.hidden)
        step = 2.0 ** -((self.experts // 8).bit_length())  # logits from about -4 to 4, exact in 16 bits
        order = torch.stack([torch.randperm(self.experts, generator=generator) for _ in range(count)])
        self._logits = (order - self.experts // 2) * step
        self._offsets = torch.tensor([_OFFSETS[i % 4] for i in range(count)])[:, None]
        self.shown = self._offsets[:, 0] > min(_OFFSETS)
        """The tokens whose scores differ from each other."""
        self._dense = torch.randn(_DENSE, self.hidden, generator=generator) * 0.5 / self.hidden**0.5
        biased = takes_bias or bool(others)
        self.choice_bias = torch.randn(self.experts, generator=generator) if biased else None
        self._linear_bias = torch.randn(self.experts, generator=generator).bfloat16().float()
        self.flattens = self._flattens()

    def _tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns the weight, whose columns are the logits of tokens, and the bias of the linear layer."""
        columns = self._logits + (self._offsets if dtype is torch.float32 else 0.0)
        bias = self._linear_bias * (self.bias is not None)
        weight = torch.zeros(self.experts, self.hidden)
        weight[:, : len(columns)] = (columns - bias).T
        return weight.to(dtype).requires_grad_(), bias.to(dtype).requires_grad_()

    def _call(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own: dict[str, Any] = dict(self._recorder.module._parameters)
        changes: dict[str, Any] = {"weight": weight} | ({} if self.bias is None else {self.bias: bias})
        changes |= {name: self.choice_bias for name in self._others if name in own}
        buffers: dict[str, Any] = dict(self._recorder.module._buffers)
        buffers |= {name: self.choice_bias for name in self._others if name in buffers}
        inside = {name: self._recorder.copy(name) for name in self._recorder.module._modules}
        copy = self._recorder.copy(_parameters={**own, **changes}, _buffers=buffers, _modules=inside)
        found = copy(x, *[self.choice_bias] * self._takes_bias)
        if not isinstance(found, tuple) or len(found) != 3 or not all(isinstance(t, Tensor) for t in found):
            raise Different("it does not return logits, weights and indices")
        logits, weights, indices = found
        if indices.shape != weights.shape or indices.dtype is not torch.int64:
            raise Different("its last result is no index of each weight")
        return logits, *_in_order(weights, indices)

    def call(self, x_dtype: torch.dtype, weight_dtype: torch.dtype) -> list[Tensor]:
        """Returns the logits, the weights and the indices, in float64, of tokens with distinct logits."""
        weight, bias = self._tensors(weight_dtype)
        x = torch.eye(len(self._logits), self.hidden).to(x_dtype)
        logits, weights, indices = (t.detach() for t in self._call(x, weight, bias))
        return [logits, weights, indices.double()]

    def _flattens(self) -> bool:
        weight, bias = self._tensors(torch.float32)
        try:
            return self._call(self._dense.view(2, -1, self.hidden), weight, bias)[0].dim() == 2
        except (RuntimeError, ValueError, IndexError):
            return False

    def dtypes(self, x_dtype: torch.dtype, weight_dtype: torch.dtype) -> Dtypes:
        """Returns the dtypes of the logits and weights, and the one in which the logits are computed."""
        (weight, bias), x = self._tensors(weight_dtype), self._dense.to(x_dtype)
        logits, weights, _ = self._call(x, weight, bias)
        for dtype in dict.fromkeys((weight_dtype, torch.float32)):
            found = Dtypes(dtype, logits.dtype, weights.dtype)
            if torch.equal(logits_of(x, weight, None if self.bias is None else bias, found), logits):
                return found
        raise Different("its logits are not those of a linear layer")

    def gradients_differ(self, form: RouterForm) -> str | None:
        """Returns how the gradients of the input and of the weight differ in float32, or None."""
        tokens = torch.cat((torch.eye(len(self._logits), self.hidden)[self._offsets[:, 0] == 0], self._dense))
        found: list[Sequence[Tensor]] = []
        for by_class in (True, False):
            weight, bias = self._tensors(torch.float32)
            x = tokens.clone().requires_grad_()
            if by_class:
                results = self._call(x, weight, bias)[:2]
            else:
                (dtypes,) = form.dtypes.values()
                logits = logits_of(x, weight, None if self.bias is None else bias, dtypes)
                results = logits, _reference(logits, form.k, self.choice_bias, dtypes.weights, form.options)[0]
            found.append(with_gradients(results, [x, weight]))
        names = "logits", "weights", "the gradient of the input", "the gradient of the weight"
        return difference(((name, a, b, 1) for name, a, b in zip(names, *found, strict=True)), 10 * _TOLERANCE)

    def narrow(self, form: RouterForm, x_dtype: torch.dtype, weight_dtype: torch.dtype) -> Dtypes | None:
        """Returns the dtypes of a call in other dtypes, or None if the class computes something else, or nothing."""
        try:
            dtypes = self.dtypes(x_dtype, weight_dtype)
            logits, weights, indices = self.call(x_dtype, weight_dtype)
        except (Different, RuntimeError):
            return None
        expected, chosen = _reference(logits, form.k, self.choice_bias, dtypes.weights, form.options)
        rows = self.shown if weight_dtype is torch.float32 else slice(None)
        same = torch.equal(chosen[rows], indices[rows].long())
        if dtypes.weights is torch.float32:
            return dtypes if same and _error(expected, weights) <= _TOLERANCE else None
        return dtypes if same and rounding(expected.float(), weights.float()) is None else None
