"""Faults that the tests seed into the kernels, one at a time. Each is an edit of the syntax tree of one function."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from .ast_edits import (
    find,
    find_assignments,
    find_calls,
    find_function,
    parse,
    remove,
    replace,
    replace_argument,
    replace_expression,
    replace_keyword,
)

Edit = Callable[[ast.FunctionDef], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault in one Triton function."""

    module: str
    function: str
    fault: str
    """What the fault breaks."""
    edit: Edit = field(repr=False)
    """Changes the syntax tree of the function in place."""
    kernels: tuple[str, ...]
    """Names of the kernels that execute the function, in the table of ops."""
    modified: bool
    """Whether only kernels with a scale and a causal mask execute it."""
    square: bool
    """Whether it compiles only for tiles with as many rows as columns."""

    def __str__(self) -> str:
        return f"{self.module}.{self.function}: {self.fault}"

    def source(self, source: str) -> str:
        """Returns the module's source with the fault.

        Raises:
            EditError: the edit does not apply to the source any more.
        """
        tree = ast.parse(source)
        self.edit(find_function(tree, self.function))
        return ast.unparse(ast.fix_missing_locations(tree))


MUTANTS: list[Mutant] = []


def mutant(
    module: str, function: str, fault: str, *kernels: str, modified: bool = False, square: bool = False
) -> Callable[[Edit], Edit]:
    """Declares an edit of the function of a module as a mutant. `kernels` are softmax by default."""

    def declare(edit: Edit) -> Edit:
        MUTANTS.append(Mutant(module, function, fault, edit, kernels or ("softmax",), modified, square))
        return edit

    return declare


def _comparisons(function: ast.FunctionDef, called: str) -> list[ast.Compare]:
    """The comparisons whose left side is a call, for example of `row_index`."""

    def matches(node: ast.Compare) -> bool:
        return isinstance(node.left, ast.Call) and ast.unparse(node.left.func) == called

    return find(function, ast.Compare, matches, f"comparison of {called}")


# Bounds and pointers of a tile


@mutant("tiles", "tile_bounds", "columns beyond the end of a row are in bounds")
def columns_unmasked(function: ast.FunctionDef) -> None:
    for comparison in _comparisons(function, "index_along"):
        comparison.comparators = [ast.Name("COLS")]


@mutant("tiles", "tile_bounds", "one column beyond the end of a row is in bounds")
def one_column_too_many(function: ast.FunctionDef) -> None:
    for comparison in _comparisons(function, "index_along"):
        comparison.ops = [ast.LtE()]


@mutant("tiles", "tile_bounds", "rows beyond the last one are in bounds")
def rows_unmasked(function: ast.FunctionDef) -> None:
    for comparison in _comparisons(function, "row_index"):
        comparison.comparators = [ast.Name("ROWS")]


@mutant("tiles", "tile_bounds", "one row beyond the last one is in bounds")
def one_row_too_many(function: ast.FunctionDef) -> None:
    for comparison in _comparisons(function, "row_index"):
        comparison.ops = [ast.LtE()]


@mutant("tiles", "tile_position", "a tile starts at row number `tile`, so that tiles overlap")
def overlapping_tiles(function: ast.FunctionDef) -> None:
    replace_expression(function, "tl.cast(tile % tiles, tl.int64) * ROWS", "tl.cast(tile % tiles, tl.int64)")


@mutant("tiles", "tile_position", "all tiles are in the first block")
def first_block_only(function: ast.FunctionDef) -> None:
    replace_expression(function, "tl.cast(tile // tiles, tl.int64)", "tl.cast(tile // tiles, tl.int64) * 0")


@mutant("tiles", "tile_pointers", "the distance of blocks is the stride of rows")
def wrong_block_stride(function: ast.FunctionDef) -> None:
    replace_expression(function, "block * outer_stride", "block * inner_stride")


@mutant("tiles", "tile_pointers", "the first row of a tile is ignored")
def first_row_ignored(function: ast.FunctionDef) -> None:
    replace_expression(function, "row * inner_stride", "0")


@mutant("tiles", "tile_pointers", "all blocks of columns are the first one")
def first_columns_only(function: ast.FunctionDef) -> None:
    replace_expression(function, "column", "0")


@mutant("tile_counter", "iterations", "the last tile is left out")
def last_tile_left_out(function: ast.FunctionDef) -> None:
    results = find(function, ast.Return, lambda node: ", tiles, " in ast.unparse(node), "range that ends at tiles")
    for result in results:
        replace_expression(result, "tiles", "tiles - 1")


# Reductions and numerics


@mutant("reductions", "reduce", "a sum is a maximum")
def sum_is_maximum(function: ast.FunctionDef) -> None:
    replace_expression(function, "tl.sum", "tl.max")


@mutant("reductions", "reduce", "a maximum is a sum", "log_softmax")
def maximum_is_sum(function: ast.FunctionDef) -> None:
    replace_expression(function, "tl.max", "tl.sum")


@mutant("reductions", "reduce", "the reduction runs across rows", square=True)
def reduced_across_rows(function: ast.FunctionDef) -> None:
    replace_argument(find_calls(function, "tl.max"), "AXIS", "1 - AXIS")
    replace_argument(find_calls(function, "tl.sum", "x"), "AXIS", "1 - AXIS")


@mutant("reductions", "merge", "a sum keeps only the latest block of columns", "softmax_backward")
def sum_overwritten(function: ast.FunctionDef) -> None:
    replace_expression(function, "a + b", "b")


@mutant("reductions", "merge", "a maximum keeps only the first block of columns")
def maximum_not_updated(function: ast.FunctionDef) -> None:
    for call in find_calls(function, "tl.maximum"):
        call.args[1] = call.args[0]


@mutant("numerics", "exp_sub", "the maximum is not subtracted")
def maximum_not_subtracted(function: ast.FunctionDef) -> None:
    for call in find_calls(function, "exp"):
        call.args[0] = call.args[0].left


@mutant("numerics", "finite", "-inf is subtracted from -inf")
def not_finite(function: ast.FunctionDef) -> None:
    replace(function, find_calls(function, "tl.where"), lambda call: call.args[2])


@mutant("numerics", "reciprocal", "the reciprocal of a number is the number")
def not_inverted(function: ast.FunctionDef) -> None:
    replace_expression(function, "1.0 / x", "x")


# Schedules

GRADIENT_STRIDES = ("in_outer", "in_inner", "in_col")
OUTPUT_STRIDES = ("out_outer", "in_inner", "out_col")
GRADIENTS = ("softmax_backward", "log_softmax_backward", "l2_norm_backward")


@mutant("tiles", "store_tile", "elements out of bounds are stored", "softmax", *GRADIENTS)
def store_without_mask(function: ast.FunctionDef) -> None:
    replace_keyword(find_calls(function, "tl.store"), "mask", None)


@mutant("tiles", "load_tile", "elements out of bounds are loaded as 0")
@mutant("column_loop", "column_loop", "elements out of bounds are loaded as 0")
def padding_of_zero(function: ast.FunctionDef) -> None:
    replace_keyword(find_calls(function, "tl.load"), "other", "0.0")


@mutant("whole_row", "whole_row", "the output is written with the row stride of the input", "softmax", *GRADIENTS)
def input_stride_for_output(function: ast.FunctionDef) -> None:
    replace_argument(find_calls(function, "anti_hoist_pointers", "each_result"), "each_result_strides", *OUTPUT_STRIDES)


@mutant("whole_row", "whole_row", "the saved tensor is read with the row stride of the gradient", *GRADIENTS)
def gradient_stride_for_saved(function: ast.FunctionDef) -> None:
    replace_argument(find_calls(function, "anti_hoist_pointers", "each_element_ptr"), "each_strides", *GRADIENT_STRIDES)


@mutant("column_loop", "column_loop", "the saved tensor is read with the row stride of the gradient", *GRADIENTS)
def loop_gradient_stride_for_saved(function: ast.FunctionDef) -> None:
    replace_argument(find_calls(function, "tile_pointers", "each_element_ptr"), "each_strides", *GRADIENT_STRIDES)


@mutant("tiles", "store_tile", "zeros are stored instead of the result", "softmax_backward", "l2_norm")
def store_zeros(function: ast.FunctionDef) -> None:
    replace_expression(function, "y.to(pointers.dtype.element_ty)", "(y - y).to(pointers.dtype.element_ty)")


@mutant("whole_row", "whole_row", "the second statistic is not computed", "softmax", "l2_norm_backward")
def second_statistic_missing(function: ast.FunctionDef) -> None:
    for target in ("each_early", "each_late"):
        for assignment in find_assignments(function, target, "statistic"):
            assignment.value = parse("tl.zeros_like(first)")


@mutant("column_loop", "column_loop", "the second statistic keeps only the latest block", "softmax", "l2_norm_backward")
def second_merge_missing(function: ast.FunctionDef) -> None:
    for assignment in find_assignments(function, "each_later", "merge"):
        assignment.value = assignment.value.args[1]


@mutant("column_loop", "column_loop", "the second statistic is not rebased to the new maximum")
def rebase_missing(function: ast.FunctionDef) -> None:
    remove(function, find_assignments(function, "each_late"))


@mutant("column_loop", "column_loop", "the first statistic is not updated", "log_softmax", "l2_norm")
def first_not_updated(function: ast.FunctionDef) -> None:
    for assignment in find_assignments(function, "first", "merge"):
        assignment.value = parse("part_first")


@mutant("column_loop", "column_loop", "the last block of columns is left out", "softmax", "l2_norm_backward")
def last_columns_left_out(function: ast.FunctionDef) -> None:
    replace_expression(function, "tl.cdiv(cols, COLS)", "cols // COLS")


# Scale and mask


@mutant("scale_mask", "scale_mask", "the scale is not applied", modified=True)
def not_scaled(function: ast.FunctionDef) -> None:
    replace_expression(function, "x * scale", "x")


@mutant("scale_mask", "scale_mask", "the causal mask has one column too few", modified=True)
def causal_without_diagonal(function: ast.FunctionDef) -> None:
    for comparison in find(function, ast.Compare, lambda node: isinstance(node.ops[0], ast.LtE), "comparison <="):
        comparison.ops = [ast.Lt()]


# Maths of softmax, log_softmax and their gradients


@mutant("softmax", "row_scale", "the result is multiplied by the sum")
def multiplied_by_sum(function: ast.FunctionDef) -> None:
    replace(function, find_calls(function, "reciprocal"), lambda call: call.args[0])


@mutant("softmax", "rebase", "a sum is rebased in the wrong direction")
def rebased_backwards(function: ast.FunctionDef) -> None:
    for call in find_calls(function, "exp"):
        call.args[0] = ast.UnaryOp(ast.USub(), call.args[0])


@mutant("softmax", "log_softmax", "the logarithm of the sum is not subtracted", "log_softmax")
def logarithm_missing(function: ast.FunctionDef) -> None:
    for result in find(function, ast.Return, lambda _: True, "return"):
        result.value = result.value.left


@mutant("softmax", "product", "the output is summed without the gradient", "softmax_backward")
def gradient_not_summed(function: ast.FunctionDef) -> None:
    replace_expression(function, "y * dy", "y")


@mutant("softmax", "softmax_gradient", "the difference has the wrong sign", "softmax_backward")
def wrong_sign(function: ast.FunctionDef) -> None:
    differences = find(function, ast.BinOp, lambda node: isinstance(node.op, ast.Sub), "difference")
    for difference in differences:
        difference.left, difference.right = difference.right, difference.left


@mutant("softmax", "log_softmax_gradient", "exp is missing", "log_softmax_backward")
def exp_missing(function: ast.FunctionDef) -> None:
    replace(function, find_calls(function, "exp"), lambda call: call.args[0])
