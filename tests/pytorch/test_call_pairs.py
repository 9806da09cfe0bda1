"""Pairs of calls: a call computes the right result after any other call of the same op."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tridal
from call_traits import TRAITS, Trait, check_call, tensors_of
from checked_memory import checked_memory
from op_samples import KINDS, OPS, Sample

PLAIN = TRAITS["plain"]


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> Iterator[None]:
    if reason := tridal.registry.get("interpreter").unavailable():
        pytest.skip(reason)
    with tridal.use(device="interpreter"), checked_memory():
        yield


def _traits_of_ops() -> Iterator[Any]:
    """Yields each op with each trait. Those of a kind whose traits are all tested have a third of them by day."""
    for (number, name), (index, (op, sample)) in itertools.product(enumerate(TRAITS), enumerate(OPS.items())):
        by_day = op in KINDS or (number + index) % 3 == 0
        marks = () if by_day else pytest.mark.nightly("the same trait of an op that is declared in the same way")
        yield pytest.param(sample, name, id=f"{op}: {name}", marks=marks)


@pytest.mark.parametrize(("sample", "name"), [*_traits_of_ops()])
def test_a_call_that_differs_in_one_trait_computes_its_own_result(sample: Sample, name: str) -> None:
    for trait in (TRAITS[name], PLAIN):  # the first trait is PLAIN, so it is known before others
        check_call(sample, trait, tensors_of(sample, trait, 17))


@settings(deadline=None, max_examples=12)
@given(
    st.sampled_from(sorted(OPS)), st.lists(st.sampled_from(sorted(TRAITS)), min_size=3, max_size=6),
    st.sampled_from([16, 31, 40]),
)  # fmt: skip
def test_calls_in_any_order_compute_their_own_results(op: str, names: list[str], columns: int) -> None:
    for trait in map(TRAITS.__getitem__, names):
        check_call(OPS[op], trait, tensors_of(OPS[op], trait, columns))


def _pairs() -> Iterator[Any]:
    """Yields each op with the names of two of its tensors that may be one tensor."""
    for name, sample in OPS.items():
        tensors = tensors_of(sample, PLAIN, 16)
        for first, second in itertools.combinations(tensors, 2):
            if tensors[first].shape == tensors[second].shape and tensors[first].dtype == tensors[second].dtype:
                yield pytest.param(sample, first, second, id=f"{name}: {first} and {second}")


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("sample", "first", "second"), [*_pairs()])
def test_one_tensor_for_two_arguments_is_another_call(sample: Sample, first: str, second: str, grad: bool) -> None:
    trait = Trait(grad=lambda index: grad)
    same, both, reverse = (first, first), (first, second), (second, first)
    for columns, order in enumerate(((same, both, reverse), (both, same, reverse)), 200):  # a new width for each order
        for a, b in (*order, order[0]):
            tensors = tensors_of(sample, trait, columns)
            check_call(sample, trait, tensors | {first: tensors[a], second: tensors[b]})


def test_conjugate_and_negative_views_are_other_calls() -> None:
    z = torch.randn(5, 8, dtype=torch.complex64)
    for view in (z.imag, z.conj().imag, z.imag, z.real, z.conj().real):
        torch.testing.assert_close(tridal.softmax(view), torch.softmax(view, -1))
