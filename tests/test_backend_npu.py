"""The NPU backend without an NPU: what its plans keep to for every problem, and how it says what is missing."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tridal.devices import registry
from tridal.devices.types import ITEMSIZE, Backend, Problem
from tridal_npu import backend
from tridal_npu.architectures import ARCHITECTURES, unified_buffer_of
from tridal_npu.unified_buffer import limit

OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
DTYPES = ("float32", "float16", "bfloat16")
LAYOUTS = ("row", "inner", "strided")

# Elements of the largest tile that the vendor's allocator accepted with 192 KiB, by what a tile is made of.
ACCEPTED = {
    ("tile", "softmax"): 32_512,
    ("tile", "log_softmax"): 19_456,
    ("tile", "softmax_backward"): 13_824,
    ("tile", "log_softmax_backward"): 19_456,
    ("looped", "softmax"): 32_512,
    ("looped", "log_softmax"): 32_512,
    ("looped", "softmax_backward"): 10_752,
    ("looped", "log_softmax_backward"): 10_752,
}
ACCEPTED_SEVERAL_ROWS = 30_720
ACCEPTED_STRIDED = 2_816
DOUBLE_BUFFERED = {"softmax": 16_384, "log_softmax": 16_384, "softmax_backward": 8_192, "log_softmax_backward": 8_192}


def no_probe(tile):
    raise AssertionError("an NPU's plan compiles nothing")


def plan(problem, arch="ascend910b", **options):
    return backend.plan(problem, ARCHITECTURES[arch], no_probe, {"num_programs": 32, **options})


sizes = st.one_of(
    st.integers(1, 70),
    st.integers(1, 200_000),
    st.integers(0, 31).flatmap(lambda k: st.integers(max(1, (1 << k) - 1), (1 << k) + 1)),
)
problems = st.builds(
    Problem,
    op=st.sampled_from(OPS),
    cols=sizes,
    inner=sizes,
    outer=sizes,
    dtype=st.sampled_from(DTYPES),
    out_dtype=st.sampled_from(DTYPES),
    saved_dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
)


def tiles_of(problem, tile):
    return problem.outer * -(-problem.inner // tile.rows)


@given(problems, st.sampled_from(sorted(ARCHITECTURES)))
def test_a_tile_fits_the_unified_buffer(problem, arch):
    device = ARCHITECTURES[arch]
    tile = plan(problem, arch).tile
    elements = tile.rows * tile.cols
    scale = device.shared_memory / (192 * 1024)
    assert elements <= scale * ACCEPTED[tile.algorithm, problem.op]
    assert elements <= limit(problem, tile.algorithm, tile.rows, device.shared_memory).accepted
    if tile.rows > 1:
        assert elements <= scale * ACCEPTED_SEVERAL_ROWS
    if problem.layout == "strided":
        assert elements <= scale * ACCEPTED_STRIDED


@given(problems)
def test_a_tile_is_of_powers_of_two_and_holds_a_row_unless_it_is_looped(problem):
    tile = plan(problem).tile
    assert tile.rows & (tile.rows - 1) == 0
    assert tile.cols & (tile.cols - 1) == 0
    assert (tile.algorithm == "looped") == (tile.cols < problem.cols)


@example(Problem(op="log_softmax", cols=513, inner=1, layout="strided"))
@given(problems)
def test_a_tile_is_double_buffered_unless_a_row_would_then_have_to_be_read_twice(problem):
    launch_plan = plan(problem)
    tile = launch_plan.tile
    double = tile.rows * tile.cols <= limit(problem, tile.algorithm, tile.rows, 192 * 1024).double_buffered
    assert launch_plan.reason.endswith(": double-buffered") == double
    assert launch_plan.reason.endswith(": not double-buffered") != double
    if double:
        assert tile.rows * tile.cols <= DOUBLE_BUFFERED[problem.op]
    else:
        assert (tile.algorithm, tile.rows) == ("tile", 1)
        assert problem.layout != "inner"


@given(problems)
def test_what_is_contiguous_fills_whole_blocks_of_32_bytes(problem):
    tile = plan(problem).tile
    read = [problem.dtype, problem.out_dtype] + [problem.saved_dtype] * problem.backward
    smallest = min(ITEMSIZE[dtype] for dtype in read)
    contiguous = {"row": tile.cols, "inner": tile.rows}.get(problem.layout, 32)
    assert contiguous * smallest % 32 == 0


@given(problems, st.one_of(st.integers(1, 65_535), st.just("cores")), st.sampled_from(sorted(ARCHITECTURES)))
def test_programs_are_as_asked_and_never_more_than_tiles(problem, num_programs, arch):
    launch_plan = plan(problem, arch, num_programs=num_programs)
    wanted = ARCHITECTURES[arch].cores if num_programs == "cores" else num_programs
    assert launch_plan.programs == min(wanted, tiles_of(problem, launch_plan.tile))
    assert 1 <= launch_plan.programs < 65_536


@given(problems)
def test_rows_are_spread_over_all_programs(problem):
    tile = plan(problem).tile
    aligned = 16 if problem.layout == "inner" else 1  # as many rows as fill a block of 32 bytes
    assert tile.rows <= max(aligned, problem.rows // 32)


def test_by_default_there_are_32_programs():
    assert backend.options["num_programs"].default == 32
    assert plan(Problem("softmax", cols=12672, inner=4096)).programs == 32


@pytest.mark.parametrize(("arch", "cores"), [("ascend910b1", 48), ("ascend910b4", 40), ("ascend950", 64)])
def test_one_program_a_vector_core(arch, cores):
    launch_plan = plan(Problem("softmax", cols=12672, inner=4096), arch, num_programs="cores")
    assert launch_plan.programs == cores
    assert f"one a vector core {cores}" in launch_plan.reason


@pytest.mark.parametrize("value", [1, 32, 65_535, "cores"])
def test_num_programs_accepts(value):
    assert backend.options["num_programs"].accepts(value)


@pytest.mark.parametrize("value", [0, -1, 65_536, True, 32.0, "all", None, "32"])
def test_num_programs_refuses(value):
    assert not backend.options["num_programs"].accepts(value)


def test_the_reason_is_arithmetic_in_words():
    launch_plan = plan(Problem("softmax", cols=781, inner=1823))
    assert launch_plan.tile.rows == 8
    assert launch_plan.tile.cols == 1024
    for word in (
        "32 programs = min(num_programs 32, 228 tiles)",
        "1823 rows in tiles of 8 x 1024 = 8192 elements",
        "98304 of the unified buffer's 196608 bytes",
        "16384 elements",
        "double-buffered",
    ):
        assert word in launch_plan.reason


def test_wide_rows_are_looped_where_the_next_power_of_two_would_not_fit():
    widths = {}
    for op in OPS:
        algorithms = [plan(Problem(op, cols=1 << k, inner=64)).algorithm for k in range(20)]
        widths[op] = 1 << algorithms.index("looped")
    assert widths == {
        "softmax": 32_768,
        "log_softmax": 32_768,
        "softmax_backward": 16_384,
        "log_softmax_backward": 16_384,
    }


def test_the_unified_buffer_goes_by_the_name_of_the_device():
    assert unified_buffer_of("Ascend910B2C") == 196_608
    assert unified_buffer_of("Ascend910_9382") == 196_608
    assert unified_buffer_of("Ascend910_9589") == unified_buffer_of("Ascend950PR_958b") == 253_952
    assert unified_buffer_of("Ascend310P3") == 196_608  # the smallest where the name is not known


def test_it_is_what_the_registry_has():
    assert isinstance(backend, Backend)
    assert registry.get("npu") is backend
    assert next(iter(backend.architectures())) == "ascend910b"


def test_it_reads_nothing_of_a_compiled_kernel():
    with pytest.raises(NotImplementedError, match="no resources"):
        backend.resources({}, 1)


def test_importing_it_imports_neither_torch_nor_the_vendor():
    check = "import sys, tridal_npu; print(sorted({'torch', 'torch_npu', 'triton'} & set(sys.modules)))"
    path = [str(Path(module.__file__).parents[1]) for module in map(importlib.import_module, ("tridal_npu", "tridal"))]
    code = f"import sys; sys.path[:0] = {path!r}; sys.modules['tridal'] = __import__('types').ModuleType('tridal')\n"
    code += f"sys.modules['tridal'].__path__ = [{path[1]!r} + '/tridal']\n{check}"  # `import tridal` itself needs torch
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Makes packages of the given sources importable, before any other of that name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(**sources):
        for name, source in sources.items():
            folder = tmp_path / name
            folder.mkdir()
            (folder / "__init__.py").write_text(source)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return tmp_path

    return make


REGISTERS_A_DEVICE = "import torch, types; torch.npu = types.SimpleNamespace(is_available=lambda: {present})"


@pytest.fixture
def _no_device_module(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "npu", None, raising=False)  # so that what a package sets is undone


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is installed here")
def test_says_that_torch_npu_is_missing():
    assert backend.unavailable() == "torch_npu is not installed"
    assert "pip install 'tridal[npu]'" in backend.install
    assert "CANN" in backend.install


def test_says_that_torch_npu_finds_no_cann(packages):
    packages(torch_npu="raise ImportError('libhccl.so: cannot open shared object file')")
    reason = backend.unavailable()
    assert "libhccl.so" in reason
    assert "set_env.sh" in reason
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in reason


@pytest.mark.usefixtures("_no_device_module")
def test_says_that_there_is_no_board(packages):
    packages(torch_npu=REGISTERS_A_DEVICE.format(present=False))
    reason = backend.unavailable()
    assert "sees no NPU" in reason
    assert "npu-smi" in reason


@pytest.mark.usefixtures("_no_device_module")
def test_says_that_triton_is_not_triton_ascend(packages):
    packages(torch_npu=REGISTERS_A_DEVICE.format(present=True), triton="")
    reason = backend.unavailable()
    assert "not triton-ascend" in reason
    assert "pip uninstall triton" in reason


@pytest.mark.usefixtures("_no_device_module")
def test_says_that_pybind11_is_missing(packages, monkeypatch):
    folder = packages(torch_npu=REGISTERS_A_DEVICE.format(present=True), triton="")
    (folder / "triton" / "backends" / "ascend").mkdir(parents=True)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pybind11" else find(name))
    assert "pip install pybind11" in backend.unavailable()


@pytest.mark.usefixtures("_no_device_module")
def test_is_available_with_everything_there(packages):
    folder = packages(torch_npu=REGISTERS_A_DEVICE.format(present=True), triton="", pybind11="")
    (folder / "triton" / "backends" / "ascend").mkdir(parents=True)
    assert backend.unavailable() is None


def test_the_documentation_has_the_largest_tiles():
    page = (Path(__file__).parents[1] / "docs" / "ascend.md").read_text()
    for op in OPS:
        largest: dict[tuple[str, str, bool], int] = {}
        for layout, power, inner in itertools.product(LAYOUTS, range(18), (1, 64, 1 << 20)):
            tile = plan(Problem(op, cols=1 << power, inner=inner, layout=layout)).tile
            kind = layout, tile.algorithm, tile.rows > 1
            largest[kind] = max(largest.get(kind, 0), tile.rows * tile.cols)
        inner, inner_looped = largest["inner", "tile", True], largest["inner", "looped", True]
        strided, strided_looped = largest["strided", "tile", True], largest["strided", "looped", False]
        kinds = ("row", "tile", False), ("row", "tile", True), ("row", "looped", False)
        cells = [f"{largest[kind]:,}" for kind in kinds]
        cells += [f"{inner:,}" + f", column tiles {inner_looped:,}" * (inner != inner_looped)]
        cells += [f"{strided:,}" + f", column tiles {strided_looped:,}" * (strided != strided_looped)]
        assert f"| {op.replace('_backward', ', backward')} | {' | '.join(cells)} |" in page
