"""A call of each op: tridal's function, the same in torch's ops, and tensors for any input, made by their roles."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import sample_math as calls
import tridal
from tridal.ops.op import Op
from tridal.ops.table import op_named

PACKAGES = [Path(__file__).parents[1] / name for name in ("row_op_package", "tensor_op_package")]
sys.path += [str(package) for package in PACKAGES if str(package) not in sys.path]

from tridal_l2norm import L2_NORM, l2_norm  # noqa: E402
from tridal_skipnorm import LOGSUMEXP, MEAN_ENERGY, SKIP_NORM, logsumexp, mean_energy, skip_norm  # noqa: E402

Tensor = torch.Tensor


class Sample(NamedTuple):
    """A call of an op."""

    op: Op
    function: Callable[..., Any]
    expected: Callable[..., Any]
    roles: Mapping[str, str]
    """For each tensor after the input: a number per "element", "column" or class ("bias"), a number per element that
    does not depend on the input ("constant"), an "index" of a column or of a "class" per row, several "classes" per
    row, or a "matrix" with a row for each class."""
    dim: int

    def tensors(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of the call for an input of any kind. Tensors with a number per element depend on it."""
        return {"input": x} | {n: self._value(i + 1.0, role, x) for i, (n, role) in enumerate(self.roles.items())}

    def _value(self, number: float, role: str, x: Tensor) -> Tensor:
        dim = min(self.dim, x.dim() - 1) % max(x.dim(), 1)
        cols, rows = x.shape[dim], [size for axis, size in enumerate(x.shape) if axis != dim]
        made = functools.partial(torch.arange, device=x.device)
        if role == "element":
            return (x + number).cos()
        if role in ("index", "class"):
            return like(made(math.prod(rows)).view(rows) % (cols if role == "index" else calls.CLASSES), x)
        if role == "classes":
            return like(made(math.prod(rows) * 3).view(*rows, 3) % 7 % calls.CLASSES, x)
        shapes = {"constant": x.shape, "column": (cols,), "bias": (calls.CLASSES,), "matrix": (calls.CLASSES, cols)}
        shape = shapes[role]
        value = (made(math.prod(shape), dtype=torch.float32).view(shape) + number).sin()
        return like((value + 1.5 if role == "column" else value).to(x.dtype), x)

    def ours(self, x: Tensor) -> Tensor:
        """Computes one tensor from an input by tridal."""
        return as_one(self.function(**self.tensors(x)))

    def theirs(self, x: Tensor) -> Tensor:
        """Computes the same by torch."""
        return as_one(self.expected(**self.tensors(x)))

    def leaves(
        self, *shape: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None
    ) -> dict[str, Tensor]:
        """Returns tensors for an input with distinct numbers, because a norm of nearly equal numbers is not exact.

        Those for which the op has a gradient require one.
        """
        size = math.prod(shape)
        numbers = torch.linspace(-2, 2, size, dtype=torch.float64)[torch.randperm(size)].view(shape)
        made = self.tensors(numbers.to(device, dtype))
        return {name: t.detach().requires_grad_(name in self.differentiable) for name, t in made.items()}

    @property
    def differentiable(self) -> list[str]:
        """The names of the tensors for which the op has a gradient."""
        names = [argument.name for argument in self.op.arguments[1:] if argument.differentiable]
        return ["input", *(name for name in names if self.roles.get(name, "index") != "index")]


def like(value: Tensor, x: Tensor) -> Tensor:
    """Returns a tensor on the mesh of another one, if that is a DTensor."""
    if not hasattr(x, "device_mesh"):
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(value, x.device_mesh, [Replicate()] * x.device_mesh.ndim)


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)


def as_one(results: Any) -> Tensor:
    """Adds several results, with a factor for each."""
    return results if isinstance(results, Tensor) else results[0] + 2 * results[1]


def loss_of(results: Any) -> Tensor:
    """Returns a number that depends on all elements of all results, with a gradient that is not constant."""
    return sum(((1 + i) * r.double()).sin().sum() for i, r in enumerate(as_tuple(results)))  # type: ignore[return-value]


def gradients(function: Callable[..., Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the gradients of `loss_of` by the names of the tensors that require one."""
    needed = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    found = torch.autograd.grad(loss_of(function(**tensors)), list(needed.values()))
    return dict(zip(needed, found, strict=True))


def registered_calls(compute: Callable[[], object]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Returns the registered ops of tridal that a dispatch mode sees: the op and its arguments, by the op's name."""

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "tridal":
                seen[func.__name__.partition(".")[0]] = func, args
            return func(*args, **(kwargs or {}))

    seen: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    with Record():
        compute()
    return seen


def _sample(
    op: Op, function: Any, expected: Any, *absent: str, roles: Mapping[str, str] | None = None, dim: int = -1
) -> Sample:
    """Returns a sample. The roles are those of the declaration, unless they are given."""
    tensors = [argument for argument in op.arguments[1:] if argument.type == "Tensor"]
    declared = {argument.name: str(argument.role) for argument in tensors if argument.name not in absent}
    return Sample(op, function, expected, declared if roles is None else roles, dim)


def _samples() -> dict[str, Sample]:
    softmax, entropy, linear = map(op_named, ("softmax", "cross_entropy", "linear_cross_entropy"))
    entropies = tridal.cross_entropy, functional.cross_entropy
    layer = {"linear_weight": "matrix", "target": "class", "linear_bias": "bias"}
    options: Any = {"temperature": 0.8, "return_entropy": True}
    smooth = (functools.partial(function, label_smoothing=0.1) for function in entropies)
    found = {
        "softmax, scaled and masked": _sample(
            softmax, functools.partial(tridal.softmax, scale=0.5), calls.masked, roles={"mask": "column"}
        ),
        "swiglu of one tensor": _sample(op_named("swiglu"), calls.swiglu_of_columns, calls.swiglu),
        "swiglu": _sample(op_named("swiglu"), tridal.swiglu, calls.swiglu),
        "geglu": _sample(op_named("geglu"), tridal.geglu, calls.geglu),
        "rotary_embedding": _sample(
            op_named("rotary_embedding"), calls.rotary_of_elements, calls.rotary,
            roles={"cos": "constant", "sin": "constant"},
        ),
        "rotary_embedding of a part": _sample(
            op_named("rotary_embedding"), calls.rotary_of_a_part, calls.rotary_and_rest,
            roles={"cos": "constant", "sin": "constant"},
        ),
        "qk_norm_rotary": _sample(
            op_named("qk_norm_rotary"), calls.qk_norm_of_rows, calls.qk_norm_rotary,
            roles={"query_weight": "column", "cos": "constant", "sin": "constant"},
        ),
        "gated_rms_norm": _sample(
            op_named("gated_rms_norm"),
            lambda input, gate, weight, **given: tridal.gated_rms_norm(
                input, gate, input.shape[-1:], weight, 1e-5, **given
            ),
            calls.gated_rms_norm,
        ),
        "route_top_k": _sample(op_named("route_top_k"), calls.route_top_k, calls.sort_experts),
        "cross_entropy of probabilities": _sample(entropy, *entropies, roles={"target": "element"}, dim=1),
        "cross_entropy": _sample(entropy, *smooth, roles={"target": "index", "weight": "column"}, dim=1),
        "linear_cross_entropy": _sample(
            linear, functools.partial(tridal.linear_cross_entropy, chunk_size=5), calls.linear_loss,
            roles=layer,
        ),
        "log_probs": _sample(
            op_named("log_probs"),
            lambda input, target, **given: tridal.log_probs(input, target, **options, **given), calls.log_probs,
        ),
        "token_log_probs": _sample(
            op_named("token_log_probs"), functools.partial(tridal.token_log_probs, chunk_size=5, **options),
            calls.token_log_probs, roles=layer | {"ids": "classes"},
        ),
    }  # fmt: skip
    for name in ("rms_norm", "layer_norm"):
        modulated, functions = (
            op_named(f"modulated_{name}"),
            (calls.modulated(name, True), calls.modulated(name, False)),
        )
        found[f"{modulated.name} without a residual"] = _sample(modulated, *functions, "residual")
        found[modulated.name] = _sample(modulated, *functions)
        found[f"gated_{modulated.name}"] = _sample(op_named(f"gated_{modulated.name}"), *functions)
        op, norms = op_named(name), (calls.norm(name, True), calls.norm(name, False))
        found[f"{name} without a weight"] = _sample(op, *norms, "residual", "weight", "bias")
        found[name] = _sample(op, *norms, "residual")
        found[f"{name} with residual"] = _sample(op, *norms)
    rows = {
        "softmax": (softmax, tridal.softmax, torch.softmax),
        "log_softmax": (op_named("log_softmax"), tridal.log_softmax, torch.log_softmax),
        "logsumexp": (LOGSUMEXP, logsumexp, calls.logsumexp),
        "skip_norm": (SKIP_NORM, skip_norm, calls.skip_norm),
        "mean_energy": (MEAN_ENERGY, mean_energy, calls.mean_energy),
        "l2_norm": (L2_NORM, l2_norm, functools.partial(functional.normalize, eps=1e-6)),
    }
    for dim, (name, (op, *functions)) in itertools.product((-1, 0), rows.items()):
        along_dim = (functools.partial(function, dim=dim) for function in functions)
        found[f"{name} of dim {dim}"] = _sample(op, *along_dim, *["residual"] * (dim < 0), dim=dim)
    return found


SAMPLES = _samples()
OF_THIRD_PARTIES = (L2_NORM, SKIP_NORM, LOGSUMEXP, MEAN_ENERGY)
THIRD_PARTY = {name: sample for name, sample in SAMPLES.items() if sample.op in OF_THIRD_PARTIES}
OPS = {sample.op.name: sample for sample in SAMPLES.values()}
"""A sample of each op, the one with the most tensors."""
EACH_OP = pytest.mark.parametrize("sample", OPS.values(), ids=OPS)
KINDS = ("softmax", "layer_norm", "swiglu", "cross_entropy", "token_log_probs", "logsumexp")
"""Ops that are declared in different ways: a tensor or several, one result or two, per element or per row, steps."""


def each_kind(instead: str) -> pytest.MarkDecorator:
    """Parametrises with `KINDS`, and at night with all ops. `instead` says what finds the faults of one op."""
    return pytest.mark.parametrize(
        "sample",
        [
            pytest.param(sample, id=name, marks=() if name in KINDS else pytest.mark.nightly(instead))
            for name, sample in OPS.items()
        ],
    )


EACH = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
