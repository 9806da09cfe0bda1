"""What a comparison of modules depends on: both modes, and what the forward reads, but nothing of the program."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import tridal

Tensor = torch.Tensor


class Norm(torch.nn.RMSNorm):
    def __init__(self) -> None:
        super().__init__(8)

    def compute(self, x: Tensor) -> Tensor:
        return torch.nn.RMSNorm.forward(self, x)


class Gelu(torch.nn.Module):
    def compute(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(8, 8) for _ in range(3))
        self.act = torch.nn.SiLU()

    def compute(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def keep_result(module: Any, x: Tensor) -> Tensor:
    module.result = module.compute(x)
    return module.result  # type: ignore[no-any-return]


def drop(module: Any, x: Tensor) -> Tensor:
    return functional.dropout(module.compute(x), p=0.1, training=module.training)


def make(base: Any, forward: Any) -> Any:
    module = type(f"Own{base.__name__}", (base,), {"forward": forward})()
    module.register_buffer("ones", torch.ones(1))
    module.tensor, module.config = torch.ones(1), SimpleNamespace(scale=1.0)
    module.tensors = [module.tensor]
    return torch.nn.Sequential(module)


def decision_of(model: torch.nn.Module) -> Any:
    return [(entry.replaced_by, entry.reason) for entry in tridal.kernelize(model).entries]


BASES = Norm, Gelu, Gated
BUFFER = "its forward reads the buffer ones, whose numbers may change"
OTHER_MODE = "its results differ between training and evaluation"
FORWARDS: list[tuple[Callable[[Any, Tensor], Tensor], str]] = [
    (drop, OTHER_MODE),
    (lambda m, x: m.compute(x) * (1.01 if m.training else 1), OTHER_MODE),
    (lambda m, x: m.compute(x if m.training else x.detach() + 0 * x), OTHER_MODE),
    (lambda m, x: m.compute(x) * m.ones, BUFFER),
    (lambda m, x: m.compute(x) + 0 * m.get_buffer("ones"), BUFFER),
    (lambda m, x: m.compute(x) * m.tensor, "its forward reads the attribute tensor, a Tensor, which may change"),
    (lambda m, x: m.compute(x) * m.tensors[0], "its forward reads the attribute tensors, a Tensor, which may change"),
    (lambda m, x: m.compute(x) * m.config.scale, "its forward reads the attribute config, a SimpleNamespace, which"),
    (keep_result, "its forward sets the attribute result"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "base"), [*zip(FORWARDS, itertools.cycle(BASES), strict=False)])
def test_a_module_that_may_compute_something_else_is_left(case: Any, base: Any) -> None:
    model = make(base, case[0]).train(base is Norm)
    ((replaced_by, reason),) = decision_of(model)
    assert replaced_by is None
    assert reason.startswith(case[1])
    assert not hasattr(model[0], "result")


@pytest.mark.parametrize("base", BASES)
def test_buffers_and_objects_that_are_not_read_do_not_matter(base: Any) -> None:
    ((replaced_by, _),) = decision_of(make(base, lambda module, x: module.compute(x)))
    assert replaced_by is not None


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.detach.default  # of `state`
        return func(*args)


@contextlib.contextmanager
def set_by(function: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    function(value)
    try:
        yield
    finally:
        function(before)


def hooks() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: pytest.fail("a hook is called"), lambda x: x)


AMBIENT: dict[str, Callable[[], tuple[Any, ...]]] = {
    "settings": lambda: (
        set_by(torch.set_default_dtype, torch.bfloat16, torch.float32), set_by(torch.set_default_device, "meta", None),
        set_by(torch.use_deterministic_algorithms, True, False), torch.autograd.set_detect_anomaly(True),
        tridal.use(fallback="error"), set_by(torch.manual_seed, 7, 0),
    ),
    "modes": lambda: (torch.device("meta"), torch.autocast("cpu"), torch.no_grad(), Mode(), hooks()),
    "inference": lambda: (set_by(torch.set_default_dtype, torch.float64, torch.float32), torch.inference_mode()),
}  # fmt: skip


NORMS: list[Any] = [
    lambda m, x: m.weight * functional.rms_norm(x.float(), (8,)).to(x.dtype),
    lambda m, x: m.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),  # the sum may overflow
]
OTHERS: list[Any] = [
    lambda m, x: m.compute(x) * torch.ones(x.shape[-1]), lambda m, x: m.compute(x) * (torch.rand(()) > 0.05), drop,
]  # fmt: skip
CASES = [*((Norm, forward) for forward in NORMS), *zip(BASES, OTHERS, strict=True), (Norm, OTHERS[1])]


@pytest.mark.parametrize("ambient", AMBIENT)
def test_a_comparison_does_not_depend_on_the_program(ambient: str) -> None:
    models, same_models = ([make(*case) for case in CASES] for _ in range(2))  # no comparison has seen their classes
    expected = [decision_of(model) for model in models]
    assert {by is None for ((by, _),) in expected} == {True, False}
    with contextlib.ExitStack() as stack:
        for context in AMBIENT[ambient]():
            stack.enter_context(context)
        before = state()
        assert [decision_of(model) for model in same_models] == expected
        assert state() == before


def state() -> Any:
    """Returns settings that all threads share, and the random state."""
    settings = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()
    return *settings, bytes(torch.default_generator.get_state().numpy())
