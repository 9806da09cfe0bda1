"""Faults that the tests seed into kernels of one tensor, one at a time."""

from __future__ import annotations

from .seeding import Mutant

GRADIENTS = ("softmax_backward", "log_softmax_backward", "l2_norm_backward")
SECOND_SUMS = {"kernels": ("softmax", "l2_norm_backward")}
MODIFIED = {"modified": True}

MUTANTS = [
    # Bounds and pointers of a tile
    Mutant("kernel", "columns beyond the end of a row are in bounds", r"columns < cols( - begin)?",
           "columns < 1048576"),
    Mutant("kernel", "one column beyond the end of a row is in bounds", "columns < cols", "columns <= cols"),
    Mutant("kernel", "rows beyond the last one are in bounds", "rows < inner - row", "rows < 1048576"),
    Mutant("kernel", "one row beyond the last one is in bounds", "rows < inner - row", "rows <= inner - row"),
    Mutant("kernel", "a tile starts at row number `tile`, so that tiles overlap", r"(row = tl\.cast\(.*\)) \* \d+$",
           r"\1"),
    Mutant("kernel", "all tiles are in the first block", r"block = .*", r"\g<0> * 0"),
    Mutant("kernel", "the distance of blocks is the stride of rows", r"block \* (\w+)_outer \+ row \* \1_inner",
           r"(block + row) * \1_inner"),
    Mutant("kernel", "the first row of a tile is ignored", r"(_row = block \* \w+) \+ .*", r"\1"),
    Mutant("kernel", "all blocks of columns are the first one", r" \+ begin\b( \* \w+\.to\(tl\.int64\))?", ""),
    Mutant("kernel", "the last tile is left out", r"(for tile in tl\.range\(.*), (tiles|outer .*), ", r"\1, \2 - 1, "),
    # Statistics
    Mutant("kernel", "a sum is a maximum", r"tl\.sum", "tl.max"),
    Mutant("kernel", "a maximum is a sum", r"tl\.max\b", "tl.sum", ("log_softmax",)),
    Mutant("kernel", "the reduction runs across rows", r"(tl\.(max|sum)\(\w+), 1\)", r"\1, 0)", square=True),
    Mutant("whole_row", "the second statistic is not computed", r"(row_sum|dot) = tl\.sum.*", r"\g<0> * 0.0",
           **SECOND_SUMS),
    Mutant("column_loop", "a sum keeps only the latest block of columns", r"\+= tl\.sum", "= tl.sum",
           ("softmax_backward",)),
    Mutant("column_loop", "a maximum keeps only the first block of columns", r"tl\.maximum\(row_max, (.*)\)",
           r"tl.where(column_block == 0, \1, row_max)"),
    Mutant("column_loop", "the first statistic is not updated", r"(row_max = tl\.maximum|squares \+=).*", "pass",
           ("log_softmax", "l2_norm")),
    Mutant("column_loop", "the second statistic keeps only the latest block", r"(row_sum|dot) \+=", r"\1 =",
           **SECOND_SUMS),
    Mutant("column_loop", "the second statistic is not rebased to the new maximum", r"row_sum = maths\.rebase.*",
           "pass"),
    Mutant("column_loop", "the last block of columns is left out", r"tl\.cdiv\(cols, (\d+)\)", r"cols // \1",
           **SECOND_SUMS),
    # Loads and stores
    Mutant("whole_row", "elements out of bounds are loaded as 0", r"float\('-inf'\)", "0.0"),
    Mutant("column_loop", "elements out of bounds are loaded as 0", r"float\('-inf'\)(?=\)\.to)", "0.0"),
    Mutant("kernel", "elements out of bounds are stored", r"(tl\.store.*), mask=in_bounds", r"\1",
           ("softmax", *GRADIENTS)),
    Mutant("kernel", "the output is written with the strides of the input", r"_result \+ out_row", "_result + in_row",
           ("softmax", *GRADIENTS)),
    Mutant("whole_row", "the saved tensor is read with the strides of the gradient", r"([xy]_ptr) \+ out_row",
           r"\1 + in_row", GRADIENTS),
    Mutant("column_loop", "the saved tensor is read with the strides of the gradient", r"([xy]_ptr) \+ out_row",
           r"\1 + in_row", GRADIENTS),
    Mutant("kernel", "zeros are stored instead of the result", r"(tl\.store\(\w+), (\w+)", r"\1, \2 - \2",
           ("softmax_backward", "l2_norm")),
    # Scale and mask
    Mutant("kernel", "the scale is not applied", r"x \* scale", "x", **MODIFIED),
    Mutant("kernel", "the causal mask has one column too few", "columns <= query", "columns < query", **MODIFIED),
    Mutant("column_loop", "the causal mask is that of the first block of columns", "query - begin", "query",
           **MODIFIED),
    # Functions of ops
    Mutant("numerics.exp_sub", "the maximum is not subtracted", "x - tl.expand_dims(shift, AXIS)", "x"),
    Mutant("numerics.finite", "-inf is subtracted from -inf", "tl.where(row_max == -_INF, 0.0, row_max)", "row_max"),
    Mutant("numerics.reciprocal", "the reciprocal of a number is the number", "1.0 / x", "x"),
    Mutant("softmax.row_scale", "the result is multiplied by the sum", "reciprocal(row_sum, EXP2_BIAS, REFINE)",
           "row_sum"),
    Mutant("softmax.rebase", "a sum is rebased in the wrong direction", "part_row_max - finite(row_max)",
           "finite(row_max) - part_row_max"),
    Mutant("softmax.log_softmax", "the logarithm of the sum is not subtracted", "tl.log(row_sum)", "row_sum * 0.0",
           ("log_softmax",)),
    Mutant("softmax.product", "the output is summed without the gradient", "y * dy", "y", ("softmax_backward",)),
    Mutant("softmax.softmax_gradient", "the difference has the wrong sign", "dy - tl.expand_dims(row_dot, AXIS)",
           "tl.expand_dims(row_dot, AXIS) - dy", ("softmax_backward",)),
    Mutant("softmax.log_softmax_gradient", "exp is missing", "exp(y, EXP2_BIAS)", "y", ("log_softmax_backward",)),
]  # fmt: skip
