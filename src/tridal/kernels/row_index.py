"""The column index of a row, for example its target class."""

import triton
import triton.language as tl


@triton.jit
def narrow_index(wide):
    """Returns column indices in 32 bits. One that needs more bits becomes the lowest number.

    Some devices compare no int64.
    """
    index = tl.cast(wide, tl.int32)
    return tl.where(tl.cast(wide >> 32, tl.int32) == (index >> 31), index, -2147483648)
