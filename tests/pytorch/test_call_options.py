"""Sizes and options of known calls: others, also of another type, are checked again, and equal ones plan nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.testing import assert_close

import tridal
from op_samples import as_one
from tridal.pytorch.path.call import CALLS
from tridal.runtime.specialization import KernelCall

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def interpreted(no_calls: None) -> Iterator[None]:
    """The interpreter serves CPU tensors, and no call is known."""
    pytest.importorskip("triton")
    with tridal.use(device="interpreter"):
        yield


def test_symbolic_sizes_are_not_compared_with_those_of_an_earlier_call() -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return tridal.rms_norm(x, x.shape[-1:], weight, 1e-5)  # type: ignore[no-any-return]

    for _ in range(2):
        norm(torch.randn(4, 16), torch.ones(16))
    traced = make_fx(norm, tracing_mode="symbolic")(torch.randn(4, 16), torch.ones(16))
    x, weight = torch.randn(3, 24), torch.rand(24)
    assert_close(traced(x, weight), functional.rms_norm(x, (24,), weight, 1e-5))
    assert not traced.shape_env.guards


def layer_sizes(x: Tensor, sizes: Any) -> Any:
    return tridal.layer_norm(x, sizes)


OPTIONS: dict[str, tuple[Callable[[Tensor, Any], Any], Callable[[Tensor, Any], Any], list[Any]]] = {
    "scale": (
        lambda x, scale: tridal.softmax(x, scale=scale), lambda x, scale: torch.softmax(x * float(scale), -1),
        [1, 1.0, True, 2, 2.0, np.float32(0.5), 0.5, np.float64(0.5), 0.0, -0.0, np.int64(2), "2", torch.tensor(2.0)],
    ),
    "dim": (
        lambda x, dim: tridal.log_softmax(x, dim), torch.log_softmax,
        [1, True, 1.0, 0, False, -1, -2, np.int64(0), np.int64(1), None],
    ),
    "dtype": (
        lambda x, dtype: tridal.softmax(x, dtype=dtype), lambda x, dtype: torch.softmax(x, -1, dtype),
        [None, torch.float64, torch.float32, "float32", None],
    ),
    "eps": (
        lambda x, eps: tridal.rms_norm(x, (8,), eps=eps),
        lambda x, eps: functional.rms_norm(x, (8,), eps=None if eps is None else float(eps)),
        [1, 1.0, True, None, 0.0, False, -0.0, np.float64(1.0), np.float32(2.0), 1e-3],
    ),
    "normalized_shape": (
        layer_sizes, lambda x, sizes: functional.layer_norm(x, tuple(map(int, sizes))),
        [(8,), [8], torch.Size([8]), (8.0,), (4, 8), [4, 8], (True, 8), (np.int64(8),), {8}, (8,), torch.Size([4, 8])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_have_a_value_and_a_type(name: str) -> None:
    """A value that is refused alone is refused after an equal one, too, and gets its own result after others."""
    ours, theirs, values = OPTIONS[name]
    x, refused = torch.randn(4, 8), []
    for value in values:
        CALLS.clear()
        try:
            ours(x, value)
        except (TypeError, ValueError, IndexError):
            refused.append(value)
    assert refused
    for value in (*values, *values, *values[::-1]):
        if any(value is other for other in refused):
            with pytest.raises((TypeError, ValueError, IndexError)):
                ours(x, value)
        else:
            assert_close(ours(x, value), theirs(x, value))


def test_an_option_that_changes_in_place_is_followed() -> None:
    x, y = torch.randn(4, 8), torch.randn(2, 3, 4)
    sizes = [8]
    dim = torch.tensor(1)
    for _ in range(2):
        assert_close(tridal.layer_norm(x, sizes), functional.layer_norm(x, (8,)))
        assert_close(tridal.log_softmax(y, dim), torch.log_softmax(y, 1))
    sizes.insert(0, 4)
    dim.zero_()
    for _ in range(2):
        assert_close(tridal.layer_norm(x, sizes), functional.layer_norm(x, (4, 8)))
        assert_close(tridal.log_softmax(y, dim), torch.log_softmax(y, 0))


FRESH: dict[str, Callable[[Tensor, int], Any]] = {
    "scale": lambda x, n: tridal.softmax(x, scale=n**-0.5),
    "a scale of NaN": lambda x, n: tridal.softmax(x, scale=n * float("nan")),
    "list of sizes": lambda x, n: tridal.layer_norm(x, [x.shape[-1]], x[0], x[0], eps=10.0**-n),
    "loss": lambda x, n: tridal.cross_entropy(x, torch.arange(x.shape[0]), label_smoothing=0.3 / n, softcap=9.0 * n),
    "log_probs": lambda x, n: tridal.log_probs(x, torch.arange(x.shape[0]), temperature=n / 3, return_entropy=True),
}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FRESH)
def test_options_that_are_computed_anew_and_shapes_in_turn_plan_nothing(
    name: str, grad: bool, planned: list[KernelCall]
) -> None:
    tensors = [torch.randn(size, requires_grad=grad) for size in ((4, 8), (5, 12))]

    def calls() -> None:
        for x in tensors:
            result = as_one(FRESH[name](x, 3))
            if grad:
                result.sum().backward()

    calls()
    before = len(planned), len(CALLS)
    for _ in range(3):
        calls()
    assert before[0] >= 2
    assert (len(planned), len(CALLS)) == before
