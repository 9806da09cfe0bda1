"""Constants of the launch plans, measured on an H200 and an H100. docs/performance-notes.md has the measurements.

If a constant changes, `tests/backends/test_backend_cuda_table.py` shows the plans that change.

Sizes are in bytes unless the name says elements, columns, rows or registers. Spills are in bytes per thread. "Bytes in
flight" are the bytes of all tiles that are resident on one multiprocessor. `KernelConfig` explains `peel` and `reload`.
"""

_KIB = 1 << 10

# The hardware
SECTOR = 32  # part of a cache line that is read at once
CACHE_LINE = 128  # the cache stores full lines, even if a kernel uses only a few bytes of each
MAX_REGISTERS = 255  # per thread
EXP2_BIAS = -5.5e-8  # mean relative error of the instruction ex2.approx on sm_90

# All schedules
BYTES_IN_FLIGHT = 96 * _KIB  # enough for the full bandwidth if programs spend a third of their time on loads
RELOAD_BYTES_IN_FLIGHT = 112 * _KIB  # for `reload`: half of the L1 cache
MIN_WAVES = 4  # with fewer waves of programs, the incomplete last wave leaves too much of the GPU idle
FEW_ELEMENTS_PER_THREAD = 32  # for narrow rows, and where two tensors are read
MANY_ELEMENTS_PER_THREAD = 64  # for wide rows of one tensor
RELOAD_ELEMENTS_PER_THREAD = 128  # for `reload`, which keeps no elements in registers between passes
LARGE_L1 = 200_000  # if the shared memory is larger than this, the L1 cache is large enough for `reload`
MUCH_PADDING = 1 / 4  # share of a tile; with less, two tiles are as large as one
MAX_SPILL = 64  # a plan spills more only if no other plan that was tried spills less
MAX_HALVINGS = 2  # of the elements per thread, to spill less
MAX_SPILL_RELOAD = 8  # so few spilled bytes cost no time
FEW_SLOTS_BANDWIDTH = 30 * 10**9  # bytes per second and multiprocessor: an H100 has 25 GB/s, an H200 37

# Sums over rows, as in the gradient of a weight
SUMS_WHOLE_ROW_COLS = 8192  # a wider row has several programs, each with the sums of its own columns
SUMS_MIN_BLOCK_COLS, SUMS_MAX_BLOCK_COLS = 1024, 2048  # of one of these programs, with a pipeline
# Wider rows have blocks of SUMS_MAX_BLOCK_COLS: 16-bit rows of a kernel with a gate beyond the first number, other rows
# beyond the second one. Share of copy with these blocks (with SUMS_MIN_BLOCK_COLS), H200, gradient of RMSNorm bf16:
# 131,072 columns 0.61 (0.71), 262,144 0.51 (0.61), 524,288 0.36 (0.41), but 1,048,576 0.22 (0.20); gated RMSNorm bf16
# 131,072 0.71 (0.56), 262,144 0.63 (0.41).
SUMS_WIDE_COLS, SUMS_WIDEST_COLS = 65_536, 524_288
SUMS_TILE_ELEMENTS, SUMS_ROWS, SUMS_NARROW_ROWS = 2048, 4, 32  # at most, of several narrow rows
SUMS_NARROW_COLS = 256  # rows of at most so many columns have fewer stages, and in 16-bit dtypes fewer threads
SUMS_ELEMENTS_PER_THREAD = 16  # of a tile; the sums and the numbers per column need registers too
# Threads of 16-bit tiles from this size on have FEW_ELEMENTS_PER_THREAD. Share of copy with 16 (32), H200: LayerNorm
# 2048 columns 0.962 (0.967), 4096 0.949 (0.969), RMSNorm 4096 0.961 (0.969), but LayerNorm 8192 0.945 (0.942).
SUMS_WIDE_TILE_COLS = 2048
# So have those of tiles of at most so many columns with MUCH_PADDING: RMSNorm fp32 2560 columns 0.83 (0.96), 3072 0.89
# (0.96), but 1280 0.98 (0.96); LayerNorm bf16 768 0.85 (0.92). In tiles of 8,192 columns, some kernels spill.
SUMS_PADDED_COLS = 4096
# Unaligned rows are loaded element by element. Their tiles have no pipeline and mostly a register limit, because the
# compiler loads so many elements early that half as many programs are resident. Two tiles have less padding. Share of
# copy of a gradient of RMSNorm with one tile or blocks and no limit (with these constants), H200, bf16: 781 columns
# 0.62 (0.72), 1281 0.53 (0.75), 1537 0.60 (0.73), 2305 0.56 (0.70), 4097 0.54 (0.66); fp32: 781 0.80 (0.95), 1281 0.81
# (0.95), 4097 0.84 (0.92). LayerNorm: bf16 1281 0.48 (0.62), 4097 0.51 (0.64), fp32 1281 0.77 (0.96). Gated RMSNorm, in
# blocks: bf16 4097 0.42 (0.62), fp32 0.58 (0.85).
SUMS_UNALIGNED_COLS, SUMS_UNALIGNED_BLOCK_COLS = 2048, 512  # rows beyond SUMS_WIDE_COLS have SUMS_MIN_BLOCK_COLS
SUMS_UNALIGNED_NARROW_COLS = 512  # of 32-bit rows
SUMS_UNALIGNED_MIN_FIRST, SUMS_UNALIGNED_MAX_FIRST = 512, 4096  # columns of the first of two tiles
SUMS_UNALIGNED_REST_PARTS = 8  # of the widest first tile; LayerNorm bf16 4609 columns 0.45, in blocks 0.52
# Pairs (elements, registers): a thread with at most so many elements of tensors and sums has this register limit. With
# 128 instead of 168, LayerNorm fp32 1281 columns has 0.73 instead of 0.96; with 168 instead of 128, RMSNorm bf16 0.69
# instead of 0.75.
SUMS_UNALIGNED_REGISTERS = (140, 128), (168, 168)
SUMS_UNALIGNED_SPILL = 320  # bytes per thread, instead of MAX_SPILL
SUMS_STAGES = 3  # tiles in flight; the sums leave too few registers for more programs
SUMS_MIN_TILES = 4  # per program: each program also writes its sums, which a second kernel reads

# Kernels whose programs exchange nothing
# Of a block of a row, or of a tile of narrow rows. Tiles of narrow 16-bit rows have FEW_ELEMENTS_PER_THREAD: a rotary
# embedding takes 0.95 to 0.99 of the time, and swiglu of 1000003x96 0.94 (H200).
SINGLE_PASS_ELEMENTS, SINGLE_PASS_ELEMENTS_PER_THREAD = 1024, 16
NARROW_WARPS = 16  # of these tiles; the gradient of geglu, 1048576x128, has 12, and 0.87 of copy instead of 0.98 (H200)
LOOP_COLS = 8192  # per step of "column_loop", if nothing is written per element
MIN_LOOP_COLS = 12_288  # narrower rows are computed in one tile
LONG_LOOP_COLS = 65_536  # with few issue slots, shorter rows have steps of half as many columns
NUMBERS_TILE_BYTES = 4096  # per tile of several narrow rows and one warp, if nothing is written per element
MIN_LOOPS_PER_CORE = 2  # rows per multiprocessor, at least, for a program per row

# Kernels that read numbers per column
# Tiles in flight, but one for kernels of one tensor and one number per column. Share of copy with 3 tiles (with one),
# 65,536 fp32 columns, H200: RMSNorm 0.92 (0.97), but LayerNorm 0.92 (0.84).
COLUMN_READS_STAGES = 3
COLUMN_READS_NARROW_COLS = 256  # so narrow rows have larger tiles, because a tile loads the numbers once
COLUMN_READS_BLOCK_COLS = 4096  # per program, if several programs compute a row
NARROW_RELOAD_BYTES = 16 * _KIB  # of a row: from here 32-bit rows have `reload`, and up to here rows have more threads
NARROW_RELOAD_BYTES_PER_THREAD = 32  # of all tensors, in these threads
# At most. Share of copy of LayerNorm with a residual, fp32, 4096 columns, H200: 0.89 with 32 warps, 1.01 with 16.
NARROW_RELOAD_WARPS = 16
COLUMN_READS_BYTES_IN_FLIGHT = 128 * _KIB  # with `reload`: the L1 cache holds so many bytes and the numbers per column

# Rows with two tiles. docs/performance-notes.md compares them with one tile. All shares of copy are of an H200.
# Kernels of one tensor whose rows have the same numbers per column need less padding than MUCH_PADDING: LayerNorm bf16
# has in one tile (in two) 1792 columns 0.87 (0.97), 3584 0.94 (0.97), 7680 0.88 (0.95).
LITTLE_PADDING = 1 / 16
# Of one tile, at most, for 32-bit rows of several tensors with several numbers per column: LayerNorm with a residual
# 2304 columns 0.83 (0.99), but 6144 1.01 (0.97).
TWO_TILES_SEVERAL_COLS = 4096
# 16-bit kernels have FEW_ELEMENTS_PER_THREAD of the first tile with `reload`, in LayerNorm and in the gradients below,
# and half as many otherwise, as all 32-bit kernels have. Share with FEW_ELEMENTS_PER_THREAD (with half): LayerNorm 1152
# 0.98 (0.94), but modulated RMSNorm 1152 0.83 (0.92), gated RMSNorm 2880 0.91 (0.96), 6144 0.90 (0.98).
# Gradients: from this size of the first tile, unless the rest has more than 1 / TWO_TILES_PARTS of it, or twice that
# with two sums and two tensors. RMSNorm 4608 0.96 (0.82), LayerNorm 4608 0.96 (0.76), 6144 0.91 (0.86), but RMSNorm
# 2304 0.97 (0.98), 6144 0.75 (0.87), LayerNorm with a residual 6144 0.89 (0.98), gated RMSNorm 5120 0.81 (0.93).
TWO_TILES_FEW_THREADS_COLS, TWO_TILES_PARTS = 4096, 4
# From this size of the first tile, kernels without sums that read one tensor have `reload`. Share without it (with it):
# modulated LayerNorm bf16 2560 columns 0.87 (0.91), 5120 0.82 (0.86), but 1536 0.87 (0.81); LayerNorm bf16 2560 0.92
# (0.98). If blocks of 16-bit rows have numbers of their own, the rest has at least 1 / TWO_TILES_PARTS of the first
# tile: modulated LayerNorm 2304 with 256 columns 0.78, with 512 0.88, 4608 with 512 0.76, with 1,024 0.85.
# Kernels that load a 16-bit tensor late have it if the rest is this part: gated RMSNorm 2560 0.99 (1.02), 5120 0.94
# (1.00), but 2880 0.99 (0.95), 4608 1.00 (0.98).
TWO_TILES_RELOAD_BYTES = 4 * _KIB
# Unaligned 16-bit rows with one number per column have at least so much padding in one tile, 32-bit rows MUCH_PADDING.
# Share of copy in one tile or blocks (in two tiles): RMSNorm bf16 4609 columns 0.69 (0.80), 9001 0.54 (0.76), but 2561
# 0.78 (0.77), 3001 0.87 (0.79), 5633 0.79 (0.77); gated RMSNorm bf16 2305 0.63 (0.77), 9001 0.40 (0.62), fp32 2561 0.70
# (0.92), 5633 0.53 (0.84); LayerNorm fp32 5633 0.70 (0.92). With a residual, RMSNorm bf16 1281 0.99 (0.85).
TWO_TILES_UNALIGNED_PADDING = 0.375

# Inner-dim rows
INNER_ROWS = 32  # per tile; half as many are enough for long rows
MAX_INNER_ELEMENTS = 16_384  # per tile; a tile with half of INNER_ROWS can have more

# Long inner-dim rows: schedule "column_loop" with several programs per row
# At least so many elements in the rows of one cache line. Shares of copy with one tile per program (with the fastest
# loop), forward and gradient, H200: fp32 4,096 columns 0.86 (0.67) and 0.90 (0.81), 8,192 0.77 (0.64) and 0.84 (0.79),
# 16,384 0.63 (0.68) and 0.75 (0.78); bf16 4,096 columns 0.62 (0.65) and 0.76 (0.75), 8,192 0.59 (0.61) and 0.70 (0.71).
INNER_LOOP_MIN_ELEMENTS = 3 << 17
# With half of these tiles, gradients of 16,384 fp32 columns reach 0.75 instead of 0.78, and the forward of 50,257 fp32
# columns 0.65 instead of 0.62. With tiles twice as large, that of 50,257 bf16 columns reaches 0.57 instead of 0.60.
INNER_LOOP_TILE_ELEMENTS, INNER_LOOP_BYTES_PER_THREAD = 8192, 64  # of a tile of one tensor
INNER_LOOP_WARPS_PER_CORE = 16  # with 128 registers per thread
# The size of the L1 cache. With half or twice as many programs per row, gradients of 16,384 bf16 columns reach 0.62 or
# 0.61 instead of 0.71.
INNER_LOOP_BYTES_PER_CORE = 256 * _KIB  # of the rows that are computed at the same time
INNER_LOOP_MAX_PROGRAMS = 64  # per row: each reads the statistics of all. With 128, bf16 50,257 0.28 instead of 0.59

# Schedule "whole_row"
WIDE_ROW_COLS = 8192  # with wider tiles, few programs are resident, and the memory is idle between their loads
MIN_BYTES_IN_FLIGHT = 56 * _KIB  # with fewer, "cooperative" is faster; a single resident program needs BYTES_IN_FLIGHT
NARROW_TILE_ELEMENTS = 1024  # per tile of several narrow rows and one warp; half as many for one float32 tensor
MIN_PEELED_ROWS = 8  # per tile of narrow peeled rows, so that the vectors, the heads and the tails each fill a warp
MAX_PADDING = 1 / 5  # largest share of padding columns in a tile with `reload`
MAX_PADDING_PEELED = 1 / 4  # the same for peeled rows
MAX_RELOAD_ROW_BYTES = 64 * _KIB  # largest row with `reload`: two of them fit in the L1 cache
# Tiles of this size with LITTLE_PADDING have FEW_ELEMENTS_PER_THREAD. Share of copy with MANY_ELEMENTS_PER_THREAD (with
# few), H200: softmax fp32 2048x32768 0.88 (0.94), 8192x32000 0.93 (0.99), but 8192x24576 0.95 (0.91).
FULL_TILE_BYTES = 128 * _KIB
MIN_RELOAD_INNER_COLS = 64  # shorter inner-dim rows need few registers even without `reload`
MAX_LIMITS_TRIED = 3  # register limits to try with `reload`

# Schedule "cooperative"
COOPERATIVE_BYTES_IN_FLIGHT = 160 * _KIB  # more than BYTES_IN_FLIGHT, because programs also wait for each other
MAX_SPILL_COOPERATIVE = 32  # one more resident program is not worth more spills than this
ROW_PROGRAMS_PER_CORE = 8  # limit on the programs of one row, per multiprocessor of the GPU
MIN_BLOCK_COLS, MAX_BLOCK_COLS = 2048, 8192  # per block; more if a row would have too many programs
BLOCKS_PER_ROW, PEELED_BLOCKS_PER_ROW = 16, 128  # wanted number; MIN_BLOCK_COLS and MAX_BLOCK_COLS take precedence
INNER_BLOCKS_PER_ROW = 64  # with more blocks, a program would read more exchanged values than elements
RELOAD_TILE_ELEMENTS = 16_384  # per tile with `reload`; wider `whole_row` tiles have more elements per thread
RELOAD_WARPS = 4  # per program with `reload`
MAX_PADDING_BLOCKS = 1 / 8  # largest share of padding columns in the blocks of a row with `reload`
MAX_EXCHANGED_VALUES = 2048  # 64-bit values that programs exchange for one tile of inner-dim rows with `reload`

# "One-shot": schedule "cooperative" for few rows, where each program computes only one block
ONE_SHOT_BLOCK_COLS = (61_440, 2048), (196_608, 4096), (1 << 20, 8192)
"""Pairs (row, block): a row of up to `row` columns has blocks of `block` columns. A row has at most 128 blocks, because
each program reads the values of all of them."""
ONE_SHOT_RELOAD_REGISTERS = 128  # enough for the kernel; the limit makes the compiler load earlier
