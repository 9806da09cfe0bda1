"""torch.compile traces the public functions of tridal, and nothing of the code that prepares and launches kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch._dynamo.symbolic_convert import InstructionTranslatorBase

import tridal
from tridal.devices import registry
from tridal.pytorch.torch import private

CORE = Path(tridal.__file__).parent
LAUNCH_PATH = ("binding", "op_calls", "kernel_calls", "steps", "runtime", "tridal_", "interpreter")
"""Parts of the paths of files that make calls and launch kernels: tridal's, the backends' and Triton's."""


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, str]]]:
    """The file and the name of each function that torch.compile traces during the test."""
    seen: set[tuple[str, str]] = set()
    original = InstructionTranslatorBase.__init__

    def record(self: Any, *arguments: Any, **keywords: Any) -> None:
        code = keywords.get("f_code") or next(value for value in arguments if hasattr(value, "co_filename"))
        seen.add((code.co_filename, code.co_name))
        original(self, *arguments, **keywords)

    monkeypatch.setattr(InstructionTranslatorBase, "__init__", record)
    torch.compiler.reset()
    registry.invalidate()  # so that the calls are new
    yield seen
    torch.compiler.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="eager")


def loss_of(function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return function(x, -1).square().sum()


def registered_op(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.ops.tridal.softmax(x, dim, x.dtype)  # type: ignore[no-any-return]


@torch._dynamo.disable(recursive=False)
def not_traced(x: torch.Tensor) -> torch.Tensor:
    """torch.compile does not trace this function, but it traces the frames that start in it."""
    return loss_of(registered_op, x) + loss_of(tridal.softmax, x)


def override_in_a_compiled_function(x: torch.Tensor) -> None:
    with tridal.override_torch():
        loss_of(torch.softmax, x).backward()


def override_around_a_compiled_function(x: torch.Tensor) -> None:
    with tridal.override_torch():
        compiled(torch.Tensor.backward)(loss_of(torch.softmax, x))


def compiled_autograd_of_a_registered_op(x: torch.Tensor) -> None:
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss_of(registered_op, x).backward()


STEPS: dict[str, Callable[[torch.Tensor], object]] = {
    "backward of a call": lambda x: compiled(torch.Tensor.backward)(loss_of(tridal.softmax, x)),
    "override around a compiled function": override_around_a_compiled_function,
    "override in a compiled function": lambda x: compiled(override_in_a_compiled_function)(x),
    "calls after a graph break": lambda x: compiled(lambda z: not_traced(z * 1))(x).backward(),
    "compiled autograd of a registered op": compiled_autograd_of_a_registered_op,
}


@pytest.mark.parametrize("name", STEPS)
def test_the_launch_path_is_not_traced(device: torch.device, traced: set[tuple[str, str]], name: str) -> None:
    if name == "calls after a graph break" and not private.SKIPS_FRAMES:
        pytest.skip("this version of torch traces the public function after a graph break, and fails")
    x = torch.randn(4, 6, device=device, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        STEPS[name](x)
    (expected,) = torch.autograd.grad(loss_of(torch.softmax, x), x)
    torch.testing.assert_close(x.grad, expected * (2 if name == "calls after a graph break" else 1))
    assert traced, "the step does not call torch.compile"
    launching = {item for item in traced if any(part in "/".join(Path(item[0]).parts[-3:]) for part in LAUNCH_PATH)}
    assert not launching
    if private.SKIPS_FRAMES:
        assert not [str(warning.message) for warning in caught if "ynamo" in str(warning.message)]
