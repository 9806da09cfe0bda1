"""The trial of an op's functions: calls each of them with the shapes that the schedules pass, and stores nothing."""

import triton
import triton.language as tl


@triton.jit
def trial(
    first_term: tl.constexpr, second_term: tl.constexpr, rebase: tl.constexpr, row_value: tl.constexpr,
    finish: tl.constexpr, finish2: tl.constexpr, row_write: tl.constexpr, row_write2: tl.constexpr,
    column_term: tl.constexpr, column_term2: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    COUNTS: tl.constexpr, PICKS: tl.constexpr, PICKS_COLUMN: tl.constexpr, PADDING: tl.constexpr,
    NEUTRAL_PADDING: tl.constexpr, MASKS_TERMS: tl.constexpr, ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr,
    AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, REPORT: tl.constexpr,
    OP_HASH: tl.constexpr,
):  # fmt: skip
    """Calls REPORT(role, result, expected) for each function, where `expected` has the expected shape.

    With PARTS, each row is a part of a row: a part has its own number of elements and its own scale.
    """
    row = tl.full([ROWS], 1.0, ACC_DTYPE)
    index = tl.arange(0, ROWS)
    column = tl.expand_dims(tl.arange(0, COLS), 1 - AXIS)
    per_column = column.to(ACC_DTYPE)
    x = tl.expand_dims(row, AXIS) + per_column
    number = tl.sum(row, 0)
    count = row if PARTS else number
    FLAG: tl.constexpr = AXIS == 1 and not PARTS
    if first_term is not None:
        term = first_term(x, x, row, row, per_column, per_column, column, number, number, AXIS, EXP2_BIAS)
        REPORT("first_term", term, x)
    if second_term is not None:
        term = second_term(
            x, x, row, row, per_column, per_column, column, number, number, row, count, x > 0, AXIS, EXP2_BIAS, FLAG,
            PARTS,
        )  # fmt: skip
        REPORT("second_term", term, x)
    if rebase is not None:
        REPORT("rebase", rebase(row, row, row, count, number, number, number, EXP2_BIAS), row)
        REPORT("rebase", rebase(number, number, number, number, number, number, number, EXP2_BIAS), number)
        parts = tl.zeros([COLS, ROWS], ACC_DTYPE)
        counts = tl.zeros([COLS, 1], ACC_DTYPE)
        REPORT("rebase", rebase(parts, parts, row, counts, number, number, number, EXP2_BIAS), parts)
        empty = parts + (float("-inf") if FIRST == "max" else 0.0)
        REPORT("empty", rebase(parts, empty, row, counts, number, number, number, EXP2_BIAS), parts)
        REPORT("empty", rebase(parts, empty, empty, counts, number, number, number, EXP2_BIAS), parts)
    value = None
    if row_value is not None:
        value = row_value(
            row, row, index, row, row, number, number, count, row, row, number, EXP2_BIAS, FLAG, PARTS
        )  # fmt: skip
        REPORT("row_value", value, row)
    if row_write is not None:
        written = row_write(row, row, index, row, row, number, number, row, row, value, number)
        REPORT("row_write", written, row)
    if row_write2 is not None:
        written = row_write2(row, row, index, row, row, number, number, row, row, value, number)
        REPORT("row_write2", written, row)
    if finish is not None:
        y = finish(
            x, x, row, row, per_column, per_column, index, column, number, number, row, count, row, row, value, number,
            AXIS, EXP2_BIAS, FLAG, PARTS, FLAG, PARTS,
        )  # fmt: skip
        REPORT("finish", y, x)
    if finish2 is not None:
        y = finish2(
            x, x, row, row, per_column, per_column, index, column, number, number, row, count, row, row, value, number,
            AXIS, EXP2_BIAS, FLAG, PARTS, FLAG, PARTS,
        )  # fmt: skip
        REPORT("finish2", y, x)
    if column_term is not None:
        term = column_term(
            x, x, row, row, per_column, per_column, index, column, number, number, row, count, row, row, value, number,
            AXIS, EXP2_BIAS, FLAG, PARTS, FLAG, PARTS,
        )  # fmt: skip
        REPORT("column_term", term, x)
    if column_term2 is not None:
        term = column_term2(
            x, x, row, row, per_column, per_column, index, column, number, number, row, count, row, row, value, number,
            AXIS, EXP2_BIAS, FLAG, PARTS, FLAG, PARTS,
        )  # fmt: skip
        REPORT("column_term2", term, x)
    REPORT("end", None, None)
