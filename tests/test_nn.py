"""tridal.nn: the modules equal those of torch.nn, and tridal computes them."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch.testing import assert_close

import tridal

NAMES = ["Softmax", "LogSoftmax"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_forward_and_backward_equal_torch(device: torch.device, name: str, dim: int) -> None:
    ours, theirs = getattr(tridal.nn, name)(dim), getattr(torch.nn, name)(dim)
    x = torch.randn(3, 5, dtype=torch.float64, device=device, requires_grad=True)
    assert_close(ours(x), theirs(x))
    assert type(ours(x).grad_fn).__name__ == "CallNodeBackward", "a kernel computed it"
    assert_close(torch.autograd.grad(ours(x).sin().sum(), x), torch.autograd.grad(theirs(x).sin().sum(), x))


@pytest.mark.parametrize("name", NAMES)
def test_modules_are_subclasses_with_the_same_signature(name: str) -> None:
    ours, theirs = getattr(tridal.nn, name), getattr(torch.nn, name)
    assert issubclass(ours, theirs)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert repr(ours(dim=1)) == repr(theirs(dim=1))


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles_compute_the_same(name: str) -> None:
    module = getattr(tridal.nn, name)(dim=1)
    x = torch.randn(3, 5)
    for twin in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin) is type(module)
        assert_close(twin(x), module(x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 5), (2, 3, 4, 5)])
def test_missing_dim_warns_and_equals_torch(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with pytest.warns(UserWarning, match="dim="):
        expected = getattr(torch.nn, name)()(x)
    with pytest.warns(UserWarning, match="deprecated: pass dim="):
        assert_close(getattr(tridal.nn, name)()(x), expected)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_to_one_graph(device: torch.device, name: str) -> None:
    x = torch.randn(3, 5, device=device)
    compiled = torch.compile(torch.nn.Sequential(getattr(tridal.nn, name)(-1)), fullgraph=True, backend="eager")
    assert_close(compiled(x), getattr(torch.nn, name)(-1)(x))
