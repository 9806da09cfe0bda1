"""Faults that the tests seed into kernels of one tensor. A case of the conformance suite finds each."""

from __future__ import annotations

from typing import Any

from tridal.testing.cases import Case, Direction

from .seeding import Mutant


def softmax(shape: tuple[int, ...] = (9, 57), dim: int = -1, op: str = "softmax", **options: Any) -> Case:
    return Case(op, "forward", shape, dim, **options)


def backward(shape: tuple[int, ...] = (9, 57), op: str = "softmax", **options: Any) -> Case:
    direction: Direction = "backward"
    return Case(op, direction, shape, **options)


MANY, WIDE = (300, 57), (3, 40_000)  # several rows per tile, and several blocks of columns per row
GRADIENT, LOG = ("softmax_backward",), ("log_softmax",)

MUTANTS = [
    Mutant(place, fault, old, new, *kernels, case=case)
    for place, fault, old, new, case, *kernels in (
        # Bounds and pointers of a tile
        ("kernel", "columns beyond the end of a row are in bounds", r"columns < cols( - begin)?", "columns < 1048576",
         softmax()),
        ("kernel", "one column beyond the end of a row is in bounds", "columns < cols", "columns <= cols", softmax()),
        ("kernel", "rows beyond the last one are in bounds", "rows < inner - row", "rows < 1048576", softmax(MANY)),
        ("kernel", "one row beyond the last one is in bounds", "rows < inner - row", "rows <= inner - row",
         softmax(MANY)),
        ("kernel", "a tile starts at row number `tile`, so that tiles overlap", r"(row = tl\.cast\(.*\)) \* \d+$",
         r"\1", softmax(MANY)),
        ("kernel", "all tiles are in the first block", r"block = .*", r"\g<0> * 0", softmax((5, 57, 33), 1)),
        ("kernel", "the distance of blocks is the stride of rows", r"block \* (\w+)_outer \+ row \* \1_inner",
         r"(block + row) * \1_inner", softmax((4, 6, 57), layout="permuted")),
        ("kernel", "the first row of a tile is ignored", r"(_row = block \* \w+) \+ .*", r"\1", softmax()),
        ("kernel", "all blocks of columns are the first one", r" \+ begin\b( \* \w+\.to\(tl\.int64\))?", "",
         softmax(WIDE)),
        ("kernel", "the last tile is left out", r"(for tile in tl\.range\(.*), (tiles|outer .*), ", r"\1, \2 - 1, ",
         softmax()),
        # Statistics
        ("kernel", "a sum is a maximum", r"tl\.sum", "tl.max", softmax()),
        ("kernel", "a maximum is a sum", r"tl\.max\b", "tl.sum", softmax(op="log_softmax"), LOG),
        ("whole_row", "the second statistic is not computed", r"(row_sum|dot) = tl\.sum.*", r"\g<0> * 0.0", softmax()),
        ("column_loop", "a sum keeps only the latest block of columns", r"\+= tl\.sum", "= tl.sum", backward(WIDE),
         GRADIENT),
        ("column_loop", "the first statistic is not updated", r"row_max = tl\.maximum.*", "pass",
         softmax(WIDE, op="log_softmax"), LOG),
        ("column_loop", "the second statistic keeps only the latest block", r"row_sum \+=", "row_sum =", softmax(WIDE)),
        ("column_loop", "the second statistic is not rebased to the new max", r"row_sum = op_math\.rebase.*", "pass",
         softmax(WIDE)),
        ("column_loop", "the last block of columns is left out", r"tl\.cdiv\(cols, (\d+)\)", r"cols // \1",
         softmax(WIDE)),
        # Loads and stores
        ("whole_row", "elements out of bounds are loaded as 0", r"float\('-inf'\)", "0.0", softmax()),
        ("column_loop", "elements out of bounds are loaded as 0", r"float\('-inf'\)(?=\)\.to)", "0.0", softmax(WIDE)),
        ("kernel", "elements out of bounds are stored", r"(tl\.store.*), mask=in_bounds", r"\1", softmax(MANY)),
        ("kernel", "the output is written with the strides of the input", r"_result \+ out_row", "_result + in_row",
         softmax(layout="sliced")),
        ("whole_row", "the saved tensor is read with the strides of the gradient", r"([xy]_ptr) \+ out_row",
         r"\1 + in_row", backward(grad_layout="sliced"), GRADIENT),
        ("column_loop", "the saved tensor is read with the strides of the gradient", r"([xy]_ptr) \+ out_row",
         r"\1 + in_row", backward(WIDE, grad_layout="sliced"), GRADIENT),
        ("kernel", "zeros are stored instead of the result", r"(tl\.store\(\w+), (\w+)", r"\1, \2 - \2", backward(),
         GRADIENT),
        # Functions of ops
        ("numerics.exp_sub", "the maximum is not subtracted", "x - tl.expand_dims(shift, AXIS)", "x", softmax(WIDE)),
        ("numerics.reciprocal", "the reciprocal of a number is the number", "1.0 / x", "x", softmax()),
        ("softmax.row_scale", "the result is multiplied by the sum", "reciprocal(row_sum, EXP2_BIAS, REFINE)",
         "row_sum", softmax()),
        ("softmax.rebase", "a sum is rebased in the wrong direction", "part_row_max - finite(row_max)",
         "finite(row_max) - part_row_max", softmax(WIDE)),
        ("softmax.log_softmax", "the logarithm of the sum is not subtracted", "tl.log(row_sum)", "row_sum * 0.0",
         softmax(op="log_softmax")),
        ("softmax.product", "the output is summed without the gradient", "y * dy", "y", backward()),
        ("softmax.softmax_gradient", "the difference has the wrong sign", "dy - tl.expand_dims(row_dot, AXIS)",
         "tl.expand_dims(row_dot, AXIS) - dy", backward()),
        ("softmax.log_softmax_gradient", "exp is missing", "exp(y, EXP2_BIAS)", "y", backward(op="log_softmax")),
    )
]  # fmt: skip
