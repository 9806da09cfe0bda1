"""Variants hold all that a kernel is specialised on and nothing more; the compiler takes them for real targets."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tridal.devices import registry
from tridal.devices.types import DeviceProperties, LaunchPlan, Op, Tile
from tridal.errors import PlanError
from tridal.runtime import launch
from tridal.runtime import specialization as variants
from tridal.runtime.row_layout import geometry
from tridal.runtime.scale_mask import Weighing
from tridal.runtime.specialization import Call

ROW = Tile("tile", rows=4, cols=1024)
SM_90 = ("cuda", 90, 32)
TARGETS = {name: p.target for name, p in registry.get("cuda").architectures().items()}


def call(
    shape: tuple[int, ...] = (64, 1024),
    dim: int = -1,
    strides: tuple[int, ...] | None = None,
    op: Op = "softmax",
    dtypes: tuple[str, ...] = ("float32", "float32"),
    addresses: tuple[int, ...] | None = None,
) -> Call:
    where = geometry(shape, strides or torch.empty(shape, device="meta").stride(), dim % len(shape))
    assert where is not None
    return Call.of(op, where, dtypes, addresses)


def constants(c: Call, tile: Tile = ROW) -> dict[str, Any]:
    return dict(c.variant(tile).constants)


def test_the_number_of_rows_compiles_nothing() -> None:
    assert call((64, 1024)).variant(ROW) == call((65, 1024)).variant(ROW) == call((1, 1024)).variant(ROW)
    assert call((8, 30, 64), 1).variant(ROW) == call((9, 30, 64), 1).variant(ROW)


def test_what_a_plain_call_does_not_do_is_a_constant() -> None:
    names = {"mask_ptr", "factor", "queries", "heads", "mask_batch", "mask_head", "mask_query", "mask_col"}
    for tile in (ROW, Tile("looped", 1, 256)):
        assert names <= set(constants(call(), tile))
        assert not names & set(dict(call().variant(tile).types))
    assert constants(call(op="softmax_backward", dtypes=("float32",) * 3))["factor"] is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call((64, 1024)), call((64, 1000))),  # multiples of 16 and of 8
        (call((64, 1024)), call((64, 1024), strides=(1025, 1))),
        (call((64, 1024)), call((64, 1024), strides=(2048, 2))),
        (call((64, 1024)), call((64, 1024), addresses=(0, 4))),
        (call((64, 1024)), call((64, 1024), addresses=(8, 0))),
        (call((64, 1024)), call((64, 1024), dtypes=("float32", "bfloat16"))),
        (call((64, 1024)), call((64, 1024), dtypes=("float64", "float64"))),
        (call((64, 1024)), call((64, 1024), op="log_softmax")),
        (call((64, 1024), 1), call((1024, 64), 0)),
        (call((8, 4, 32), 1), call((8, 4, 33), 1)),  # neighbouring rows end on a vector's boundary or not
        (call((64, 1024)), call((2, 1024), strides=(1 << 31, 1))),
    ],
)
def test_what_compiles_anew(one: Call, other: Call) -> None:
    assert one.variant(ROW) != other.variant(ROW)


def test_a_stride_of_one_is_a_constant() -> None:
    assert constants(call((64, 1024)))["in_col"] == 1
    assert constants(call((64, 1024), 0))["in_inner"] == 1
    assert {"in_col", "in_inner"}.isdisjoint(constants(call((64, 1024), strides=(1, 64))))


def test_offsets_take_64_bits_where_a_tile_needs_them() -> None:
    tall = call((70_000, 70_000), 0)
    assert constants(tall, replace(ROW, rows=16, cols=1 << 17))["WIDE"]
    assert not constants(tall, replace(ROW, rows=16, cols=1 << 10))["WIDE"]
    types = dict(call((2, 1024), strides=(1 << 31, 1)).variant(ROW).types)
    assert (types["in_inner"], types["out_inner"]) == ("i64", "i32")


@pytest.mark.parametrize(
    ("c", "shift", "aligned"),
    [
        (call((64, 1001)), 0, True),
        (call((64, 1001), addresses=(4, 4)), 1, True),
        (call((64, 1001), addresses=(0, 8)), 2, False),  # written rows are off by something else
        (call((64, 1001), strides=(1002, 1)), 0, False),
        (call((64, 1001), strides=(1005, 1)), 0, True),  # the same, by a whole vector
        (call((64, 1001), dtypes=("float32", "bfloat16"), addresses=(32, 34)), 1, False),
    ],
)
def test_edges(c: Call, shift: int, aligned: bool) -> None:
    tile = replace(ROW, edges=True)
    assert not c.problem.aligned
    assert c.scalars(tile)["shift"] == shift
    assert constants(c, tile)["ALIGNED"] is aligned
    assert constants(c)["EDGES"] is constants(c)["ALIGNED"] is False


def test_the_kernel_shows_parts_in_blocks_of_as_many_as_words_are_counted_for() -> None:
    (block,) = re.findall(r"^_BLOCK = tl.constexpr\((\d+)\)", launch._SOURCE.read_text(), re.MULTILINE)
    assert int(block) == variants._BLOCK


def test_words_hold_every_part_of_a_row_and_a_desk() -> None:
    tile = Tile("split", rows=1, cols=1024, split=5)
    c = call((64, 5000))
    assert c.variant(tile).cooperative
    assert c.words(LaunchPlan(tile, programs=35, reason="")) == 64 * 5 + 2 + 3 * 7
    tall = LaunchPlan(replace(tile, rows=16), programs=10, reason="")
    assert call((3, 5000, 40), 1).words(tall) == 9 * 5 * 16 + 2 + 3 * 2
    wide = LaunchPlan(replace(tile, split=65), programs=130, reason="")
    assert c.words(wide) == 64 * (65 + 3) + 2 + 3 * 2, "and one for each block of very many"
    once = LaunchPlan(replace(tile, persistent=False), programs=64 * 5, reason="")
    assert c.words(once) == 64 * 5 * 5, "a box for each part, with a word of each, where none takes another tile"
    assert c.words(LaunchPlan(ROW, programs=64, reason="")) == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("c", "tile"),
    [
        (call((64, 1024)), ROW),
        (call((64, 1024), op="softmax_backward", dtypes=("float16",) * 3), ROW),
        (call((64, 1024), 0, op="log_softmax"), replace(ROW, rows=32, cols=64)),
        (call((64, 1001), dtypes=("bfloat16",) * 2), replace(ROW, edges=True)),
        (call((64, 1001), op="log_softmax_backward", dtypes=("float32",) * 3), replace(ROW, rows=1, edges=True)),
        (call((9, 50_257)), Tile("split", 1, 8192, split=7, edges=True)),
        (call((4096, 64), 0, op="softmax_backward", dtypes=("float32",) * 3), Tile("split", 32, 256, split=16)),
        (call((64, 1024), dtypes=("float64",) * 2), Tile("looped", 1, 256, num_stages=2)),
        (call((64, 1024), strides=(1, 64)), ROW),
    ],
)
def test_compiles_for_devices_that_are_not_here(arch: str, c: Call, tile: Tile) -> None:
    pytest.importorskip("triton")
    compiled = launch.compile_variant(c.variant(tile), TARGETS[arch])  # type: ignore[arg-type]
    cubin = compiled.asm["cubin"]
    assert cubin[:4] == b"\x7fELF"
    used = registry.get("cuda").resources(compiled.asm, compiled.metadata.shared)
    assert 16 <= used.registers <= 255
    assert used.shared_memory == compiled.metadata.shared
    assert compiled.metadata.launch_cooperative_grid == (tile.split > 1)


@pytest.mark.parametrize("c", [call((64, 1001)), call((64, 1001), addresses=(4, 4))])
def test_rows_off_a_vectors_boundary_keep_whole_vectors(c: Call) -> None:
    pytest.importorskip("triton")
    accesses = {}
    for edges in (False, True):
        compiled = launch.compile_variant(c.variant(Tile("tile", 1, 1024, edges=edges)), SM_90)
        accesses[edges] = [compiled.asm["ptx"].count(f"{kind}.global.v4") for kind in ("ld", "st")]
    assert accesses[False] == [0, 0]
    assert min(accesses[True]) > 0


MASKED = Weighing(factor=0.5, mask="uint8", strides=(1024, 0, 0, 1))


class Entered:
    """A launcher that is entered by its compiled part."""

    taken: tuple[Any, ...] = ()

    def __init__(self, *_: Any) -> None:
        self.launch = self._launch

    def _launch(self, *arguments: Any) -> None:
        Entered.taken = arguments

    def __call__(self, *arguments: Any) -> None:
        self.launch(*arguments)


@pytest.mark.parametrize("launcher", [Entered, lambda *_: None], ids=["entered", "called"])
@pytest.mark.parametrize("weighing", [variants.PLAIN, Weighing(factor=0.5), MASKED], ids=["plain", "scaled", "masked"])
@pytest.mark.parametrize(
    "tile", [ROW, Tile("split", 1, 256, split=4), Tile("looped", 1, 256)], ids=lambda t: t.algorithm
)
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_arguments_go_where_the_kernel_takes_them(
    monkeypatch: pytest.MonkeyPatch, op: Op, tile: Tile, weighing: Weighing, launcher: Any
) -> None:
    """Whatever of a mask and of the words for a shared row there is."""
    triton = pytest.importorskip("triton")
    if op == "softmax_backward" and weighing.mask is not None:
        weighing = Weighing(weighing.factor)
    taken: list[Any] = []
    source = SimpleNamespace(fn=None, signature={})
    loaded = SimpleNamespace(
        run=lambda *a: taken.extend(a[9:]), function=0, packed_metadata=None, src=source, metadata=None
    )
    monkeypatch.setattr(launch, "_load", lambda *_: loaded)
    here = SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: 0, launcher_cls=launcher))
    monkeypatch.setattr(triton.runtime, "driver", here)
    c = Call.of(op, geometry((64, 1024), (1024, 1), 1), ("float32",) * (3 if "_" in op else 2), None, weighing)  # type: ignore[arg-type]
    given = ["out_ptr", "in_ptr"] + ["y_ptr"] * c.problem.backward + ["mask_ptr"] * (weighing.mask is not None)
    given += ["words"] * (tile.split > 1)
    tensors = [SimpleNamespace(data_ptr=lambda name=name: name) for name in given]
    device = DeviceProperties("here", "sm_90", 132, target=SM_90)
    launch._bind_compiled(c, LaunchPlan(tile, programs=4, reason=""), device)(0, *tensors)
    variant = c.variant(tile)
    names = getattr(launch._kernels(interpreted=False), variant.kernel).arg_names
    if launcher is Entered:
        names = [name for name in names if name in dict(variant.types)]
        taken = list(Entered.taken[9:])
    at = dict(zip(names, taken, strict=True))
    addresses = {name: at[name] if launcher is Entered else at[name].data_ptr() for name in given}
    assert addresses == {name: name for name in given}
    numbers = dict(variant.constants) | c.scalars(tile)
    assert {name: at[name] for name in names if name not in given} == {n: numbers[n] for n in names if n not in given}


def test_interpreted_programs_cannot_wait_for_each_other() -> None:
    pytest.importorskip("triton")

    class Sharing:
        name, interpreted, options = "sharing", True, {}  # type: ignore[var-annotated]

        def plan(self, *_: Any) -> LaunchPlan:
            return LaunchPlan(Tile("split", 1, 512, split=2), programs=2, reason="")

    with pytest.raises(PlanError, match="wait for each other"):
        launch.prepare(call(), Sharing(), DeviceProperties("here", "here", 1), {})  # type: ignore[arg-type]


def test_a_plan_without_programs_is_refused() -> None:
    class Idle:
        name, interpreted, options = "idle", True, {}  # type: ignore[var-annotated]

        def plan(self, *_: Any) -> LaunchPlan:
            return LaunchPlan(ROW, programs=0, reason="")

    with pytest.raises(PlanError, match=r"'idle' planned 0 programs"):
        launch.prepare(call(), Idle(), DeviceProperties("here", "here", 1), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("programs", [1, 63, 65])
def test_programs_that_do_not_go_on_are_as_many_as_tiles(programs: int) -> None:
    class Short:
        name, interpreted, options = "short", True, {}  # type: ignore[var-annotated]

        def plan(self, *_: Any) -> LaunchPlan:
            return LaunchPlan(Tile("tile", 1, 1024, persistent=False), programs, reason="")

    with pytest.raises(PlanError, match=rf"'short' planned {programs} programs that are not persistent for 64 tiles"):
        launch.plan(call((64, 1024)), Short(), DeviceProperties("here", "here", 1), {})  # type: ignore[arg-type]


def test_probing_without_a_target_is_explained() -> None:
    class Probing:
        name, interpreted, options = "probing", False, {}  # type: ignore[var-annotated]

        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            return LaunchPlan(ROW, 1, "", resources=probe(ROW))

    with pytest.raises(PlanError, match=r"'probing' probed for registers, but somewhere has no compile target"):
        launch.plan(call(), Probing(), DeviceProperties("somewhere", "?", 1), {})  # type: ignore[arg-type]
