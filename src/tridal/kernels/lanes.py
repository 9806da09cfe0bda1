"""The lanes of a row, whose statistics "column_loop" keeps apart until its first loop ends."""

import triton
import triton.language as tl


@triton.jit
def split_lanes(x):
    """Returns a tile [1, columns] as [LANES, columns // LANES]: vectors of neighbors go to each lane in turn.

    If a program has LANES threads, a row of the result has the elements that one thread loaded. A tile [columns, ROWS]
    becomes [columns // LANES, LANES * ROWS]: each lane has every LANES-th column.
    """
    if AXIS == 0:
        return tl.reshape(tl.broadcast_to(x, [COLS, ROWS]), [COLS // LANES, LANES * ROWS])
    else:
        vectors: tl.constexpr = x.shape[1] // (LANES * VECTOR)
        return tl.reshape(tl.permute(tl.reshape(x, [vectors, LANES, VECTOR]), (1, 0, 2)), [LANES, vectors * VECTOR])


@triton.jit
def reduce_lanes(x, HOW: tl.constexpr):
    """Reduces each lane of a tile [LANES, elements].

    A lane's vectors are reduced first, and then their results. Triton 3.7 reduces both at once incorrectly if the
    threads of a lane are not neighbors.
    """
    if AXIS == 0:
        return tl.max(x, 0) if HOW == "max" else tl.sum(x, 0)
    else:
        vectors = tl.reshape(x, [x.shape[0], x.shape[1] // VECTOR, VECTOR])
        return tl.max(tl.max(vectors, 2), 1) if HOW == "max" else tl.sum(tl.sum(vectors, 2), 1)


@triton.jit
def merge_lanes(x, HOW: tl.constexpr):
    """Combines a statistic of all lanes to that of each row."""
    x = tl.reshape(x, [LANES, ROWS])
    return tl.max(x, 0) if HOW == "max" else tl.sum(x, 0)


@triton.jit
def repeat_lanes(x):
    """Returns a statistic of rows for each lane."""
    return tl.reshape(tl.broadcast_to(tl.expand_dims(x, 0), [LANES, ROWS]), [LANES * ROWS])
