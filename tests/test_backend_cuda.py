"""The CUDA plan: occupancy on real registers and shared memory, plans that hold for every shape. No GPU is needed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tridal
from tridal.devices import registry
from tridal.devices.types import DeviceProperties, Problem, Resources, Tile
from tridal.errors import PlanError

CUDA = registry.get("cuda")
ARCHITECTURES = CUDA.architectures()
H100 = ARCHITECTURES["sm_90"]
OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")


def occupancy(tile: Tile, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    from tridal_cuda.occupancy import occupancy

    return occupancy(tile, resources, device)


def test_occupancy_is_the_tutorials_arithmetic() -> None:
    tile = Tile("tile", 1, 1024, num_warps=8)
    resident, words = occupancy(tile, Resources(registers=32, spills=0, shared_memory=57344), H100)
    assert resident == 4
    assert "registers 65536//(32*32*8)=8" in words
    assert "shared memory 233472//58368=4" in words


@pytest.mark.parametrize(
    ("resources", "warps", "expected"),
    [
        (Resources(32, 0, 0), 8, 8),  # no shared memory: no limit
        (Resources(33, 0, 0), 8, 6),  # registers are allocated in eights
        (Resources(16, 0, 0), 8, 8),  # 2048 threads
        (Resources(16, 0, 0), 1, 32),  # 32 programs
        (Resources(255, 64, 0), 8, 1),
        (Resources(99, 0, 0), 2, 8),  # nine by all registers, but a quarter holds four warps, not four and a half
        (Resources(128, 0, 0), 32, 0),
        (Resources(32, 0, 300_000), 4, 0),
        (Resources(16, 0, 32_776), 2, 6),  # seven by their own shared memory, but the driver keeps a KiB for each
        (Resources(16, 0, 232_448), 2, 1),
    ],
)
def test_occupancy_limits(resources: Resources, warps: int, expected: int) -> None:
    assert occupancy(Tile("tile", 1, 1024, num_warps=warps), resources, H100)[0] == expected


def test_unknown_numbers_limit_nothing() -> None:
    bare = DeviceProperties("bare", "?", cores=4)
    assert occupancy(Tile("tile", 1, 64), Resources(255, 0, 100_000), bare)[0] == 1
    half = dict.fromkeys(("dtype", "out_dtype", "saved_dtype"), "bfloat16")
    problem = Problem(op="softmax_backward", cols=16_384, inner=4096, **half)  # type: ignore[arg-type]
    tile = CUDA.plan(problem, replace(H100, registers=None), lambda tile: Resources(64, 0, 0), {}).tile
    assert (tile.rereads, tile.max_registers) == (True, None)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    op = draw(st.sampled_from(OPS))
    wide = draw(st.sampled_from([64, 2000, 5000, 300_000, 20_000_000, 3_000_000_000]))
    dtype, out = (draw(st.sampled_from(["float16", "bfloat16", "float32", "float64"])) for _ in range(2))
    return Problem(
        op=op,  # type: ignore[arg-type]
        cols=draw(st.integers(1, wide)),
        inner=draw(st.sampled_from([1, 2, 3, 16, 31, 132, 4096, 100_000, 3_000_000_000])),
        outer=draw(st.sampled_from([1, 2, 512])),
        dtype=dtype,
        out_dtype=out,
        saved_dtype=dtype,
        layout=draw(st.sampled_from(["row", "inner", "strided"])),
        aligned=draw(st.booleans()),
        weighed=draw(st.booleans()),
    )


@settings(max_examples=400)
@given(problems(), st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_every_plan_holds(problem: Problem, arch: str, data: st.DataObject) -> None:
    device = ARCHITECTURES[arch]
    probed: list[Tile] = []

    def probe(tile: Tile) -> Resources:
        probed.append(tile)
        most = min(255, 65536 // (32 * tile.num_warps))  # the compiler spills rather than take more
        shared = tile.rows * tile.cols * problem.itemsize * (tile.num_stages - 1)
        return Resources(data.draw(st.integers(16, most)), data.draw(st.integers(0, 100)), shared)

    try:
        plan = CUDA.plan(problem, device, probe, {})
    except PlanError:
        needed = probed[-1].num_stages * probed[-1].rows * probed[-1].cols * problem.itemsize
        assert needed > (device.shared_memory or 0)
        return
    tile = plan.tile
    assert tile in probed
    assert len(probed) <= 10, "compiling is dear"
    assert max(tried.split for tried in probed) <= 8 * device.cores, "and takes long for many parts"
    for side in (tile.rows, tile.cols, tile.num_warps):
        assert side & (side - 1) == 0 < side
    assert tile.num_warps * 32 <= 1024
    assert tile.rows * tile.cols <= 1 << 20, "Triton's largest tensor"
    tiles = problem.outer * -(-problem.inner // tile.rows)
    assert 1 <= plan.programs <= tiles * tile.split
    vector = 16 // {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[problem.dtype]
    held = problem.cols // vector * vector if tile.edges else problem.cols
    if tile.algorithm == "tile":
        assert tile.cols >= held
    if tile.algorithm == "split":
        assert tile.split > 1
        assert tile.cols * tile.split >= held
        assert plan.programs % tile.split == 0
        assert plan.occupancy is not None
        assert plan.programs <= device.cores * plan.occupancy, "all are resident at once"
        assert problem.accumulator == 4, "two float32 make a word"
    else:
        assert tile.split == 1
    assert not tile.edges or (problem.layout == "row" and not problem.aligned)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("rows", "cols"), [(4096, 256), (4096, 12_672), (1823, 781), (3, 200_000)])
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plans_on_what_the_compiler_reports(arch: str, rows: int, cols: int, op: str, dtype: str) -> None:
    pytest.importorskip("triton")
    plan = tridal.plan(rows, cols, dtype=dtype, op=op, arch=arch)
    device = ARCHITECTURES[arch]
    assert plan.resources is not None
    assert plan.resources.registers >= 16
    allocated = -(-plan.resources.registers // 8) * 8
    expected = 65536 // (allocated * 32 * plan.tile.num_warps)
    assert f"registers 65536//({allocated}*32*{plan.tile.num_warps})={expected}" in plan.reason
    assert f"{device.cores} SMs x {plan.occupancy} = {device.cores * (plan.occupancy or 0)} programs" in plan.reason
    assert f"{rows} rows" in plan.reason
    assert plan.programs <= rows * plan.tile.split


def test_pipelines_where_too_little_is_in_flight() -> None:
    """Half-precision rows of 20,480 are shared, the next parts on their way; a T4's memory takes a stage less."""
    pytest.importorskip("triton")
    tiles = {a: tridal.plan(4096, 20_480, dtype="float16", arch=a).tile for a in ("sm_75", "sm_90")}
    assert {a: (t.algorithm, t.num_stages) for a, t in tiles.items()} == {"sm_75": ("split", 1), "sm_90": ("split", 3)}
    assert tridal.plan(4096, 12_672, dtype="float32", arch="sm_90").tile.num_stages == 1


@pytest.mark.parametrize("cols", [32_768, 65_536, 1_048_576])
def test_wide_rows_of_16_bits_are_read_again_from_the_cache(cols: int) -> None:
    """Each pass loads for itself, which the compiler must not undo, and what is on its way fits a core's cache."""
    pytest.importorskip("triton")
    from tridal.runtime import launch
    from tridal.runtime import row_layout as geometry
    from tridal.runtime import specialization as variants

    call = variants.Call.of("softmax", geometry.geometry((2048, cols), (cols, 1), 1), ("bfloat16", "bfloat16"))
    plan = launch.plan(call, CUDA, H100, {})
    assert plan.tile.rereads
    assert plan.occupancy is not None
    assert 96 << 10 < plan.occupancy * plan.tile.cols * 2 <= (H100.shared_memory or 0)
    compiled = launch.compile_variant(call.variant(plan.tile), H100.target)  # type: ignore[arg-type]
    loads = re.findall(r"ld\.global(\.L1::evict_\w+)?[\w.:]*\.v4", compiled.asm["ptx"])
    each = plan.tile.cols // (8 * 32 * plan.tile.num_warps)
    assert Counter(loads) == {".L1::evict_last": each, "": each, ".L1::evict_first": each}
    assert not tridal.plan(2048, cols, dtype="float32", arch="sm_90").tile.rereads
    gradient = tridal.plan(2048, cols, dtype="bfloat16", op="softmax_backward", arch="sm_90").tile
    assert gradient.rereads == (gradient.split == 1)


@pytest.mark.parametrize(
    ("op", "cols"),
    [("softmax_backward", cols) for cols in (8200, 10_007, 14_336, 32_768)] + [("log_softmax_backward", 12_672)],
)
def test_gradients_of_whole_rows_of_16_bits_are_read_again(op: str, cols: int) -> None:
    """By as many programs as fill about half of a core's cache without spilling, where there are enough rows."""
    pytest.importorskip("triton")
    plan = tridal.plan(20_000, cols, dtype="float16", op=op, arch="sm_90")
    assert (plan.tile.algorithm, plan.tile.rereads, plan.tile.edges) == ("tile", True, cols % 16 > 0)
    assert plan.occupancy is not None
    assert plan.resources is not None
    assert plan.resources.spills <= 8
    assert 96 << 10 < plan.occupancy * cols * 4 <= 160 << 10
    assert tridal.plan(500, cols, dtype="float16", op=op, arch="sm_90").tile.algorithm == "split"


@pytest.mark.parametrize(("dtype", "arch"), [("float32", "sm_90"), ("bfloat16", "sm_80")])
def test_other_gradients_of_whole_rows_are_not(dtype: str, arch: str) -> None:
    pytest.importorskip("triton")
    assert not tridal.plan(20_000, 12_672, dtype=dtype, op="softmax_backward", arch=arch).tile.rereads


@pytest.mark.parametrize(("op", "cols"), [("softmax_backward", 30_001), ("softmax", 16_383)])
@pytest.mark.parametrize(("spills", "algorithm"), [(0, "tile"), (8, "tile"), (40, "split")])
def test_whole_rows_that_would_spill_are_shared(op: str, cols: int, spills: int, algorithm: str) -> None:
    """However few programs a multiprocessor holds, as some compilers have it."""
    half = dict.fromkeys(("dtype", "out_dtype", "saved_dtype"), "bfloat16")
    problem = Problem(op=op, cols=cols, inner=4096, aligned=False, **half)  # type: ignore[arg-type]
    plan = CUDA.plan(problem, H100, lambda tile: Resources(64, spills if tile.rereads else 0, 0), {})
    assert (plan.tile.algorithm, plan.tile.rereads) == (algorithm, algorithm == "tile")


@pytest.mark.parametrize("cols", [20_480, 24_576])
def test_gradients_that_would_leave_much_of_a_tile_idle_are_shared(cols: int) -> None:
    pytest.importorskip("triton")
    tile = tridal.plan(4096, cols, dtype="bfloat16", op="softmax_backward", arch="sm_90").tile
    assert (tile.algorithm, tile.rereads) == ("split", False)


@pytest.mark.parametrize(
    ("cols", "dtype"), [(8192, "bfloat16"), (15_000, "float16"), (8192, "float32"), (16_383, "float32")]
)
def test_whole_rows_that_fill_their_tile_are_read_again(cols: int, dtype: str) -> None:
    """However many they are; but not what a mask is added to, which had to be read again, too."""
    pytest.importorskip("triton")
    from tridal.runtime import launch
    from tridal.runtime import row_layout as geometry
    from tridal.runtime import specialization as variants
    from tridal.runtime.scale_mask import Weighing

    for rows in (600, 60_000):
        plan = tridal.plan(rows, cols, dtype=dtype, arch="sm_90")
        assert (plan.tile.algorithm, plan.tile.rereads) == ("tile", True)
        assert plan.occupancy is not None
        assert plan.resources is not None
        assert plan.resources.spills <= 8
        itemsize = 4 if dtype == "float32" else 2
        assert 96 << 10 < plan.occupancy * cols * itemsize <= 160 << 10
    where = geometry.geometry((60_000, cols), (cols, 1), 1)
    scaled = variants.Call.of("softmax", where, (dtype, dtype), weighing=Weighing(factor=0.5))
    assert not launch.plan(scaled, CUDA, H100, {}).tile.rereads


@pytest.mark.parametrize(
    ("rows", "cols", "rereads"),
    [(4096, 4096, False), (16_384, 4096, True), (16_384, 4095, False), (20_000, 6500, False)],
)
def test_rows_of_few_bytes_are_read_again_if_they_are_many(rows: int, cols: int, rereads: bool) -> None:
    """And fill their tile, without ends beside it."""
    pytest.importorskip("triton")
    assert tridal.plan(rows, cols, dtype="bfloat16", arch="sm_90").tile.rereads == rereads


@pytest.mark.parametrize(("rows", "cols", "part"), [(4096, 24_576, 8192), (1900, 70_001, 8192), (800, 151_935, 16_384)])
def test_parts_that_are_read_again_are_nearly_full(rows: int, cols: int, part: int) -> None:
    """And where that can't be, or rows are few, they are held in registers."""
    pytest.importorskip("triton")
    few = 20_000_000 // cols
    shapes = ((rows, cols), (rows, 20_480), (few, cols))
    plans = [tridal.plan(*shape, dtype="bfloat16", arch="sm_90") for shape in shapes]
    assert [plan.tile.rereads for plan in plans] == [True, False, False]
    tile = plans[0].tile
    assert (tile.cols, tile.num_warps, tile.persistent, tile.edges) == (part, 4, True, cols % 8 > 0)
    assert cols > 7 / 8 * tile.cols * tile.split
    assert plans[0].resources is not None
    assert plans[0].resources.spills <= 8


@pytest.mark.parametrize("op", ["softmax", "softmax_backward", "log_softmax"])
@pytest.mark.parametrize(("rows", "cols", "dtype"), [
    (1, 32_768, "float32"), (8, 128_256, "float16"), (32, 50_257, "bfloat16"), (2, 1_000_000, "float32"),
    (128, 65_536, "bfloat16"),
])  # fmt: skip
def test_few_rows_are_read_at_once_and_again(rows: int, cols: int, dtype: str, op: str) -> None:
    """By programs that are all resident, and whose parts of rows are all in the caches."""
    pytest.importorskip("triton")
    plan = tridal.plan(rows, cols, dtype=dtype, op=op, arch="sm_90")
    if op == "softmax_backward" and rows > 100:  # twice as much as the caches hold
        assert plan.tile.persistent
        return
    tile = plan.tile
    assert (tile.algorithm, tile.rereads, tile.persistent) == ("split", True, False)
    assert plan.programs == rows * tile.split <= (plan.occupancy or 0) * H100.cores
    each = -(-plan.programs // H100.cores)
    tensors = 2 if op == "softmax_backward" else 1
    assert each * tile.cols * tensors * (4 if dtype == "float32" else 2) <= (H100.shared_memory or 0)
    assert not tridal.plan(rows, cols, dtype=dtype, op=op, arch="sm_80").tile.rereads
    apart = Problem(op=op, cols=cols, inner=rows, dtype=dtype, layout="strided", aligned=False)  # type: ignore[arg-type]
    assert not CUDA.plan(apart, H100, lambda tile: Resources(32, 0, 0), {}).tile.rereads


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("cols", "split"), [(64, 1), (512, 1), (4096, 16), (50_257, None)])
def test_columns_of_16_bits_are_read_again_from_the_cache(cols: int, split: int | None, backward: bool) -> None:
    """By whole lines or, shared among programs, half ones in a gradient; without spills, and no fp32 in between."""
    pytest.importorskip("triton")
    from tridal.runtime import launch
    from tridal.runtime import row_layout as geometry
    from tridal.runtime import specialization as variants

    shape = (-(-(1 << 27) // (512 * cols)), cols, 512)
    op, tensors = ("softmax_backward", 3) if backward else ("softmax", 2)
    where = geometry.geometry(shape, geometry.contiguous_strides(shape), 1)
    call = variants.Call.of(op, where, ("bfloat16",) * tensors)  # type: ignore[arg-type]
    plan = launch.plan(call, CUDA, H100, {})
    assert plan.tile.rereads
    assert plan.tile.split == split or split is None
    assert plan.tile.rows in ((16, 32, 64) if plan.tile.split > 1 else (64,))
    assert plan.occupancy is not None
    assert plan.resources is not None
    assert plan.resources.spills == 0 or cols == 64
    held = plan.occupancy * plan.tile.rows * plan.tile.cols * 2 * (tensors - 1)
    assert 88 << 10 <= held <= (H100.shared_memory or 0)
    compiled = launch.compile_variant(call.variant(plan.tile), H100.target)  # type: ignore[arg-type]
    loads = Counter(re.findall(r"ld\.global(?:\.L1::evict_(\w+))?[\w.:]*\.v4", compiled.asm["ptx"]))
    each = (tensors - 1) * plan.tile.rows * plan.tile.cols // (8 * 32 * plan.tile.num_warps)
    assert loads == {"last": each, "first": each} if backward else {"last": each, "": each, "first": each}


@pytest.mark.parametrize(("columns", "dtype"), [(2048, "bfloat16"), (262_144, "float32")])
def test_few_columns_and_those_of_32_bits_are_held_in_registers(columns: int, dtype: str) -> None:
    """Few take the smaller tiles, as more cores read then; and 32 bits take no less of the cache than of registers."""
    pytest.importorskip("triton")
    tile = tridal.plan(512, columns, dim=0, dtype=dtype, arch="sm_90").tile
    assert (tile.rows, tile.cols, tile.rereads) == (32, 512, False)


@pytest.mark.parametrize(("cols", "programs"), [(12_672, 3), (4096, 12)])
def test_fewer_registers_let_more_programs_in(cols: int, programs: int) -> None:
    pytest.importorskip("triton")
    plan = tridal.plan(4096, cols, dtype="bfloat16", arch="sm_90")
    assert plan.resources is not None
    assert plan.occupancy == programs
    assert plan.resources.spills == 0
    assert not plan.tile.persistent
    assert plan.programs == 4096


@pytest.mark.parametrize("dim", [0, -1])
def test_short_rows_fill_a_tile(dim: int) -> None:
    pytest.importorskip("triton")
    shape = (3, 1_000_000) if dim == 0 else (1_000_000, 3)
    tile = tridal.plan(*shape, dim=dim, arch="sm_90").tile
    assert tile.rows * tile.cols == 1024


def test_says_what_is_missing_here() -> None:
    import torch

    reason = CUDA.unavailable()
    if torch.cuda.is_available():
        assert reason is None
    else:
        assert reason is not None
        assert re.search("built without CUDA|sees no CUDA device|ROCm", reason)


def test_cuobjdump_explains_itself() -> None:
    pytest.importorskip("triton")
    with pytest.raises(RuntimeError, match="cuobjdump reports no registers"):
        CUDA.resources({"cubin": b"no cubin at all"}, 0)


def _functions(ptx: str) -> dict[str, str]:
    """Bodies of the functions of a kernel that were not inlined, by name."""
    return dict(re.findall(r"^\.func\s+(?:\([^)]*\)\s*)?(\S+)\(.*?^{(.*?)^}", ptx, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("cols", [20_000, 65_536, 50_257, 1_000_003])
def test_waiting_for_other_programs_takes_neither_barriers_nor_shared_memory(cols: int, op: str) -> None:
    """A function's shared memory overlaps with tiles on their way, and its warps leave loops one by one."""
    pytest.importorskip("triton")
    from tridal.runtime import launch
    from tridal.runtime import row_layout as geometry
    from tridal.runtime import specialization as variants

    dtypes = ("bfloat16",) * (3 if op.endswith("backward") else 2)
    call = variants.Call.of(op, geometry.geometry((4096, cols), (cols, 1), 1), dtypes)  # type: ignore[arg-type]
    for warps, stages in ((1, 3), (2, 3), (4, 1), (4, 3), (8, 1)):
        tile = Tile("split", 1, 8192, warps, num_stages=stages, split=-(-cols // 8192), edges=not call.problem.aligned)
        ptx = launch.compile_variant(call.variant(tile), H100.target).asm["ptx"]  # type: ignore[arg-type]
        (name, body), *more = _functions(ptx).items()
        assert "exchange_row" in name
        assert not more
        assert "ld.volatile" in body
        assert ".shared" not in body
        assert "bar.sync" not in body


@pytest.mark.parametrize(("op", "programs"), [("softmax", 4), ("softmax_backward", 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_several_rows_are_held_once(op: str, programs: int, dtype: str) -> None:
    """Elements in the layout of the words as well, or offsets kept from before the loop, would take all registers."""
    pytest.importorskip("triton")
    plan = tridal.plan(4096, 1536, dim=0, dtype=dtype, op=op, arch="sm_90")
    assert plan.resources is not None
    assert (plan.tile.algorithm, plan.tile.rows, plan.tile.rereads) == ("split", 32, False)
    assert plan.occupancy == programs
    assert plan.resources.spills <= 16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_are_shared_for_haste_have_a_program_each(dtype: str) -> None:
    """Where all programs are resident at once, none has to ask for more, and more rows compile nothing new."""
    pytest.importorskip("triton")
    few = [tridal.plan(rows, 131_072, dtype=dtype, arch="sm_90") for rows in (5, 16)]
    assert len({plan.tile for plan in few}) == 1
    assert not few[0].tile.persistent
    assert [plan.programs for plan in few] == [rows * few[0].tile.split for rows in (5, 16)]
    assert tridal.plan(4096, 131_072, dtype=dtype, arch="sm_90").tile.persistent


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("cols", [300, 1051, 1500, 5000])
def test_a_row_is_shared_by_several_or_not_at_all(op: str, cols: int) -> None:
    """Also between the widest tile of whole rows and the widest part of one."""
    for inner in (16, 64, 1000):
        problem = Problem(op=op, cols=cols, inner=inner, outer=64, layout="inner")  # type: ignore[arg-type]
        plan = CUDA.plan(problem, H100, lambda tile: Resources(100, 0, 0), {})
        assert (plan.tile.algorithm == "split") == (plan.tile.split > 1)
