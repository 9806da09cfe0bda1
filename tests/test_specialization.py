"""Specializations: they hold everything that a kernel is compiled for, and nothing that changes between like calls."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from call_helpers import WHOLE_ROW, kernel_call
from tridal.devices.types import KernelConfig, LaunchPlan
from tridal.library.softmax.log_softmax import LOG_SOFTMAX
from tridal.library.softmax.softmax import SOFTMAX
from tridal.runtime.specialization import BLOCK, KernelCall


def constants(call: KernelCall, config: KernelConfig = WHOLE_ROW) -> dict[str, Any]:
    return dict(call.specialize(config).constants)


def test_specialization_does_not_depend_on_the_number_of_rows() -> None:
    matrix = [kernel_call((rows, 1024)).specialize(WHOLE_ROW) for rows in (64, 65, 1)]
    assert matrix[0] == matrix[1] == matrix[2]
    inner = [kernel_call((rows, 30, 64), 1).specialize(WHOLE_ROW) for rows in (8, 9)]
    assert inner[0] == inner[1]


def test_arguments_that_a_plain_call_does_not_use_are_constants() -> None:
    unused = {
        "score_mask", "workspace", "scale", "queries", "heads", "mask_batch", "mask_head", "mask_query", "mask_col",
    }  # fmt: skip
    for config in (WHOLE_ROW, KernelConfig("column_loop", 1, 256)):
        assert unused <= set(constants(kernel_call(), config))
        assert not unused & set(dict(kernel_call().specialize(config).types))
    assert constants(kernel_call(kernel=SOFTMAX.backward))["scale_number"] is None


def test_a_parameter_with_a_value_is_a_run_time_argument() -> None:
    one, other = (
        kernel_call(kernel=SOFTMAX.backward, parameters=(value,)).specialize(WHOLE_ROW) for value in (2.0, 3.0)
    )
    assert one == other
    assert dict(one.types)["scale_number"] == "fp32"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (kernel_call((64, 1024)), kernel_call((64, 1000))),  # multiples of 16 and of 8
        (kernel_call((64, 1024)), kernel_call((64, 1024), strides=(1025, 1))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), strides=(2048, 2))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), addresses=(0, 4))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), addresses=(8, 0))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), dtypes=("float32", "bfloat16"))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), dtypes="float64")),
        (kernel_call((64, 1024)), kernel_call((64, 1024), kernel=LOG_SOFTMAX.forward)),
        (kernel_call((64, 1024), 1), kernel_call((1024, 64), 0)),
        (kernel_call((8, 4, 32), 1), kernel_call((8, 4, 33), 1)),  # neighbouring rows end at a vector boundary or not
        (kernel_call((64, 1024)), kernel_call((2, 1024), strides=(1 << 31, 1))),
    ],
)
def test_calls_that_need_different_kernels_have_different_specializations(one: KernelCall, other: KernelCall) -> None:
    assert one.specialize(WHOLE_ROW) != other.specialize(WHOLE_ROW)


def test_a_stride_of_one_is_a_constant() -> None:
    assert constants(kernel_call((64, 1024)))["in_col"] == 1
    assert constants(kernel_call((64, 1024), 0))["in_inner"] == 1
    assert {"in_col", "in_inner"}.isdisjoint(constants(kernel_call((64, 1024), strides=(1, 64))))


def test_offsets_have_64_bits_only_if_a_tile_needs_them() -> None:
    tall = kernel_call((70_000, 70_000), 0)
    assert constants(tall, replace(WHOLE_ROW, rows=16, cols=1 << 17))["INT64_OFFSETS"]
    assert not constants(tall, replace(WHOLE_ROW, rows=16, cols=1 << 10))["INT64_OFFSETS"]
    types = dict(kernel_call((2, 1024), strides=(1 << 31, 1)).specialize(WHOLE_ROW).types)
    assert (types["in_inner"], types["out_inner"]) == ("i64", "i32")


@pytest.mark.parametrize(
    ("call", "misalignment", "same"),
    [
        (kernel_call((64, 1001)), 0, True),
        (kernel_call((64, 1001), addresses=(4, 4)), 1, True),
        (kernel_call((64, 1001), addresses=(0, 8)), 2, False),  # the output has another misalignment
        (kernel_call((64, 1001), strides=(1002, 1)), 0, False),
        (kernel_call((64, 1001), strides=(1005, 1)), 0, True),  # the row strides differ by a whole vector
        (kernel_call((64, 1001), dtypes=("float32", "bfloat16"), addresses=(32, 34)), 1, False),
    ],
)
def test_peel_knows_the_misalignment_and_whether_the_output_has_the_same(
    call: KernelCall, misalignment: int, same: bool
) -> None:
    peel = replace(WHOLE_ROW, peel=True)
    assert not call.problem.aligned
    assert call.scalars(peel)["misalignment"] == misalignment
    assert constants(call, peel)["SAME_MISALIGNMENT"] is same
    assert constants(call)["PEEL"] is constants(call)["SAME_MISALIGNMENT"] is False


def test_kernel_and_runtime_use_the_same_block_size_for_words() -> None:
    spec = find_spec("tridal.kernels.exchange")  # does not import it, because it needs Triton
    assert spec is not None
    assert spec.origin is not None
    (block,) = re.findall(r"^BLOCK = (\d+)", Path(spec.origin).read_text(), re.MULTILINE)
    assert int(block) == BLOCK


def test_workspace_slots_cover_each_part_of_a_row_and_the_tile_counter() -> None:
    config = KernelConfig("cooperative", rows=1, cols=1024, programs_per_row=5)
    call = kernel_call((64, 5000))
    assert call.specialize(config).cooperative
    assert call.workspace_slots(LaunchPlan(config, programs=35, reason="")) == 64 * 5 + 2 + 3 * 7
    tall = LaunchPlan(replace(config, rows=16), programs=10, reason="")
    assert kernel_call((3, 5000, 40), 1).workspace_slots(tall) == 9 * 5 * 16 + 2 + 3 * 2
    assert call.workspace_slots(LaunchPlan(WHOLE_ROW, programs=64, reason="")) == 0


def test_workspace_has_one_more_word_per_block_of_very_many_programs() -> None:
    config = KernelConfig("cooperative", rows=1, cols=1024, programs_per_row=65)
    assert kernel_call((64, 5000)).workspace_slots(LaunchPlan(config, 130, "")) == 64 * (65 + 3) + 2 + 3 * 2


def test_workspace_has_a_mailbox_per_program_if_programs_are_not_persistent() -> None:
    config = KernelConfig("cooperative", rows=1, cols=1024, programs_per_row=5, persistent=False)
    assert kernel_call((64, 5000)).workspace_slots(LaunchPlan(config, 64 * 5, "")) == 64 * 5 * 5
