"""The trial of an op's functions: calls each of them with the shapes that the schedules pass, and stores nothing."""

import triton
import triton.language as tl

UNNORMALISED = REFINE = AXIS == 1 and not PARTS
GUARD = TERM_GUARD = ZERO_MASKED_ROWS = PARTS
REBASE_BIAS = EXP2_BIAS


@triton.jit
def trial():
    """Calls REPORT(role, function, result, expected) for each function, where `expected` has the expected shape.

    With PARTS, each row is a part of a row: a part has its own number of elements and its own scale.
    """
    row = tl.full([ROWS], 1.0, ACC_DTYPE)
    index = tl.arange(0, ROWS)
    tile_column = tl.expand_dims(tl.arange(0, COLS), 1 - AXIS)
    column = tile_column.to(ACC_DTYPE)
    tile = tl.expand_dims(row, AXIS) + column
    in_bounds = tile > 0
    number = tl.sum(row, 0)
    part_number = row if PARTS else number
    picked, picked_column = row, row
    each_element = tile
    each_row = row
    each_column = column
    each_parameter = number
    REPORT("term", each_first_term_name, each_first_term, tile)
    first, part_first, count = row, row, part_number
    REPORT("term", each_later_term_name, each_later_term, tile)
    each_later = row
    part_count, count = part_number, number
    REPORT("rebase", each_late_name, each_rebased, row)
    parts = tl.zeros([COLS, ROWS], ACC_DTYPE)
    each_late = parts
    part_first, part_count = parts, tl.zeros([COLS, 1], ACC_DTYPE)
    REPORT("rebase", each_late_name, each_rebased, parts)
    part_first = parts + (float("-inf") if FIRST == "max" else 0.0)
    REPORT("empty", each_late_name, each_rebased, parts)
    first = part_first
    REPORT("empty", each_late_name, each_rebased, parts)
    each_late = number
    first, part_first, part_count = number, number, number
    REPORT("rebase", each_late_name, each_rebased, number)
    first, part_first, part_scale = row, row, part_number
    each_later = row
    value = each_value
    REPORT("row_value", each_value_name, each_value, row)
    REPORT("row_writes", each_row_formula_name, each_row_formula, row)
    REPORT("writes", each_formula_name, each_formula, tile)
    REPORT("column_writes", each_sum_term_name, each_sum_term, tile)
    REPORT("end", "", None, None)
