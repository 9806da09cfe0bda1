"""The declaration of an op of version 0.2 is an error that shows the new declaration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from third_party_op import UNIT_NORM
from tridal import ops
from tridal.errors import PluginError
from tridal.ops import RowReduce

FIELDS: dict[str, Any] = {
    "name": "unit_norm",
    "forward": UNIT_NORM.forward,
    "backward": UNIT_NORM.backward,
    "reference": UNIT_NORM.reference,
    "gradient": UNIT_NORM.gradient,
}


def declaration(*arguments: Any, **fields: Any) -> str:
    """Returns the new declaration that the error shows."""
    with pytest.raises(PluginError, match=r"^RowOp is now Op, .*: write Op") as caught:
        ops.RowOp(*arguments, **fields)
    return str(caught.value).partition(": write ")[2]


@pytest.mark.parametrize("positional", [False, True])
def test_the_declaration_of_the_error_declares_the_op(positional: bool) -> None:
    fields = {"saves": "input", "parameters": {"eps": 1e-6}, "autocast": True}
    text = declaration(*FIELDS.values(), **fields) if positional else declaration(**FIELDS, **fields)
    assert text == (
        "Op(name='unit_norm', arguments=(per_element('input'), number('eps', 1e-06),), kernels=(forward, backward), "
        "saves=('input',), reference=reference, gradient=gradient, autocast=True)"
    )
    op = eval(text, {**vars(ops), **FIELDS})
    assert op.fault() is None
    assert [argument.schema for argument in op.arguments] == [argument.schema for argument in UNIT_NORM.arguments]
    assert (op.kernels, op.saves) == (UNIT_NORM.kernels, UNIT_NORM.saves)
    assert op.autocast


def test_defaults_of_the_old_declaration() -> None:
    op = eval(declaration(**FIELDS), {**vars(ops), **FIELDS})
    assert op.arguments == UNIT_NORM.arguments[:1]
    assert op.saves == ("output",)


def test_rows_of_a_reduction_are_those_of_all_other_dims() -> None:
    found = RowReduce(torch.zeros(2, 3, 5, 7), 1)
    assert (found.rows, found.count) == (2 * 5 * 7, 3)
