"""The table of ops: built-in ops, entry points, and ops with a fault, which do not affect others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from backend_helpers import run_python
from tridal import library
from tridal.errors import PlanError, PluginError
from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.library.softmax.log_softmax import LOG_SOFTMAX
from tridal.library.softmax.softmax import SOFTMAX
from tridal.ops import table
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall

GOOD = """
from dataclasses import replace
from tridal.library.softmax.softmax import SOFTMAX

OP = replace(
    SOFTMAX,
    name="{name}",
    kernels=(replace(SOFTMAX.forward, name="{name}"), replace(SOFTMAX.backward, name="{name}_backward")),
    aten=None,
)
"""
SAME_NAME = """
more = replace(SOFTMAX.forward.statistics[0], term="y")
OP = replace(OP, kernels=(replace(OP.forward, statistics=(*SOFTMAX.forward.statistics, more)), OP.backward))
"""
FAULTS = {
    "import fails": ("raise OSError('no library')", "it could not be loaded: OSError: no library"),
    "no reference": (GOOD + "OP = replace(OP, reference=None)", "it has no reference"),
    "two statistics of one name": (GOOD + SAME_NAME, "uses one name for two things: "),
    "not an op": ("OP = object()", "expected a tridal.ops.Op, found object"),
    "another name": (
        GOOD.replace("{name}", "other"),
        "its entry point is called 'another_name', but its name is 'other'",
    ),
}


def install(folder: Path, distribution: str, name: str, source: str) -> None:
    """Installs a distribution with one module and one op."""
    module = f"{distribution}_module"
    folder.joinpath(f"{module}.py").write_text(source.replace("{name}", name))
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(f"[tridal.ops]\n{name} = {module}:OP\n")


LIST_OPS = """
    import json
    from tridal.ops import table
    import tridal
    print(json.dumps([[entry.name, entry.origin, entry.fault] for entry in table.registered()]))
"""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str | None]]:
    """Name, origin and problem of all ops, where distributions with faults and one without are installed."""
    folder = tmp_path_factory.mktemp("ops")
    for fault, (source, _) in FAULTS.items():
        install(folder, fault.replace(" ", ""), fault.replace(" ", "_"), source)
    for distribution, name in (
        ("works", "works"),
        ("aardvark", "zebra"),
        ("thief", "softmax"),
        ("second", "softmax_backward"),
    ):
        install(folder, distribution, name, GOOD)
    for distribution in ("beta", "alpha"):
        install(folder, distribution, "same", GOOD)
    return [tuple(entry) for entry in json.loads(run_python(LIST_OPS, folder))]


@pytest.mark.parametrize("fault", FAULTS)
def test_op_with_a_fault_is_recorded(entries: list[tuple[str, str, str | None]], fault: str) -> None:
    (found,) = [entry for entry in entries if entry[0] == fault.replace(" ", "_")]
    assert found[1] == f"{fault.replace(' ', '')} 1.0"
    assert FAULTS[fault][1] in str(found[2])


def test_ops_without_a_fault_work(entries: list[tuple[str, str, str | None]]) -> None:
    built_in = [op.name for op in library.OPS]
    assert [name for name, _, problem in entries if problem is None] == [*built_in, "same", "works", "zebra"], "by name"
    assert entries[0][:2] == ("softmax", "tridal")


@pytest.mark.parametrize("distribution", ["thief", "second"])
def test_op_whose_name_is_taken_is_recorded(entries: list[tuple[str, str, str | None]], distribution: str) -> None:
    (found,) = [entry for entry in entries if entry[1] == f"{distribution} 1.0"]
    assert found[2] == "its name is taken: tridal has an op 'softmax'"


def test_of_two_distributions_with_one_name_the_first_keeps_it(entries: list[tuple[str, str, str | None]]) -> None:
    assert [entry for entry in entries if entry[0] == "same"] == [
        ("same", "alpha 1.0", None),
        ("same", "beta 1.0", "its name is taken: alpha 1.0 has an op 'same'"),
    ]


@pytest.mark.parametrize(("name", "owner"), [("rms_norm", "rms_norm"), ("cross_entropy_smooth", "cross_entropy")])
def test_the_names_of_ops_of_several_tensors_and_of_their_kernels_are_taken(name: str, owner: str) -> None:
    kernels = tuple(replace(kernel, name=kernel.name.replace("softmax", name)) for kernel in SOFTMAX.kernels)
    op = replace(SOFTMAX, name=name, kernels=kernels)
    known = {entry.name: entry for entry in table.registered()}
    assert table._fault(op, name, known) == f"its name is taken: tridal has an op {owner!r}"
    with pytest.raises(PluginError, match="tridal has an op"):
        table.check(op)


def test_unknown_op_suggests_similar_names() -> None:
    with pytest.raises(PlanError, match="unknown op 'softmx'; did you mean 'softmax'"):
        table.kernel_named("softmx")


def test_check_rejects_a_taken_name_and_a_fault() -> None:
    other = replace(LOG_SOFTMAX, name="softmax", kernels=SOFTMAX.kernels)
    with pytest.raises(PluginError, match="tridal has an op"):
        table.check(other)
    with pytest.raises(PluginError, match="saves: expected a tuple of names"):
        table.check(replace(SOFTMAX, saves="nothing"))  # type: ignore[arg-type]
    table.check(SOFTMAX)


def test_ops_with_equal_traits_are_equal_problems() -> None:
    """So they get equal plans: a plan depends on nothing but the problem."""
    other = RowKernel(
        name="other_backward",
        module="other",
        reads=("g", "z"),
        statistics=(Statistic("total", "sum", term="f"),),
        writes=("h",),
    )
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    dtypes = ("float32", "float32", "float32")
    assert KernelCall(other, layout, dtypes).problem == KernelCall(SOFTMAX.backward, layout, dtypes).problem
