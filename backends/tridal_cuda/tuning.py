"""The numbers of plans, measured on an H200. docs/performance-notes.md gives the measurements.

Sizes are bytes unless the name says elements, columns, rows or registers. Spills are bytes per thread.
"""

KIB = 1 << 10

# The hardware
VECTOR = 16  # the widest memory access of a thread
CACHE_LINE = 128  # a line occupies its full size in the cache, however few of its bytes are used
MAX_REGISTERS = 255  # per thread
EXP2_BIAS = -5.5e-8  # mean relative error of the instruction ex2.approx on sm_90

# All schedules. Bytes in flight are those of the tiles that are resident on one multiprocessor.
BYTES_IN_FLIGHT = 96 * KIB  # keep a multiprocessor's share of the memory busy, if programs load a third of the time
RELOAD_BYTES_IN_FLIGHT = 112 * KIB  # with `reload`: half of the L1 cache
MIN_WAVES = 4  # with fewer waves of programs, an incomplete last wave leaves too much of the GPU idle
FEW_ELEMENTS_PER_THREAD = 32  # for narrow rows, and where two tensors are read
MANY_ELEMENTS_PER_THREAD = 64  # for wide rows of one tensor
RELOAD_ELEMENTS_PER_THREAD = 128  # a thread does not hold these elements between two passes
LARGE_L1 = 200_000  # shared memory above which the L1 cache, which uses the same memory, is large enough for `reload`
MAX_SPILL_RELOAD = 8  # so few cost no time

# Inner-dim rows
INNER_ROWS = 32  # per tile; half as many are enough for long rows
MAX_INNER_ELEMENTS = 16_384  # per tile, unless half of INNER_ROWS need more

# Schedule "whole_row"
WIDE_ROW_COLS = 8192  # tiles with more columns leave room for few programs, so the memory idles between their loads
MIN_BYTES_IN_FLIGHT = 56 * KIB  # with fewer, "cooperative" is faster; a single program needs BYTES_IN_FLIGHT
NARROW_TILE_ELEMENTS = 1024  # of a tile of several narrow rows, for one warp; half for one tensor of float32
MIN_PEELED_ROWS = 8  # per tile of narrow peeled rows, so that the vectors, the heads and the tails each fill a warp
MAX_PADDING = 1 / 5  # share of padding columns in a tile with `reload`
MAX_PADDING_PEELED = 1 / 4  # the same for peeled rows
MAX_RELOAD_ROW_BYTES = 64 * KIB  # two such rows fit in the L1 cache
MIN_RELOAD_INNER_COLS = 64  # shorter inner-dim rows need few registers anyway
MAX_LIMITS_TRIED = 3  # register limits for one configuration with `reload`, because each takes a compilation

# Schedule "cooperative"
COOPERATIVE_BYTES_IN_FLIGHT = 160 * KIB  # as BYTES_IN_FLIGHT, for programs that also wait for each other
MAX_SPILL_COOPERATIVE = 32  # more spills than this are not worth one more resident program
ROW_PROGRAMS_PER_CORE = 8  # programs of one row; wider blocks need more registers, so fewer are resident
MIN_BLOCK_COLS, MAX_BLOCK_COLS = 2048, 8192  # of a block, if there are not too many blocks
BLOCKS_PER_ROW, PEELED_BLOCKS_PER_ROW = 16, 128  # between these sizes
INNER_BLOCKS_PER_ROW = 64  # with more, a program would read more values of other programs than elements
RELOAD_TILE_ELEMENTS = 16_384  # with `reload`; wider tiles of whole rows have more elements per thread
RELOAD_WARPS = 4  # of a program with `reload`
MAX_PADDING_BLOCKS = 1 / 8  # share of padding columns in the blocks of a row with `reload`
MAX_EXCHANGED_VALUES = 2048  # 64-bit values that the programs of a tile of inner-dim rows with `reload` exchange

# Schedule "cooperative" for few rows, with one program per block ("one-shot")
ONE_SHOT_BLOCK_COLS = (61_440, 2048), (196_608, 4096), (1 << 20, 8192)
"""Pairs of the most columns of a row and the columns of its blocks. A row has 128 blocks at most, because each program
sends a value to each other program."""
ONE_SHOT_RELOAD_REGISTERS = 128  # enough, and any limit makes the compiler load earlier
MAX_SPILL_ONE_SHOT = 64  # more than for MAX_SPILL_COOPERATIVE, because programs wait for each other only once
