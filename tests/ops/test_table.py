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
from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX
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
FAULTS = {
    "import fails": ("raise OSError('no library')", "it could not be loaded: OSError: no library"),
    "no reference": (GOOD + "OP = replace(OP, reference=None)", "it has no reference"),
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


def test_an_op_with_a_fault_or_a_taken_name_is_recorded_and_others_work(tmp_path: Path) -> None:
    for fault, (source, _) in FAULTS.items():
        install(tmp_path, fault.replace(" ", ""), fault.replace(" ", "_"), source)
    good = {"works": "works", "aardvark": "zebra", "thief": "softmax", "second": "softmax_backward"}
    for distribution, name in (*good.items(), ("beta", "same"), ("alpha", "same")):
        install(tmp_path, distribution, name, GOOD)
    entries = [tuple(entry) for entry in json.loads(run_python(LIST_OPS, tmp_path))]
    for fault, (_, message) in FAULTS.items():
        (found,) = [entry for entry in entries if entry[0] == fault.replace(" ", "_")]
        assert found[1] == f"{fault.replace(' ', '')} 1.0"
        assert message in str(found[2])
    built_in = [op.name for op in library.OPS]
    assert [name for name, _, problem in entries if problem is None] == [*built_in, "same", "works", "zebra"], "by name"
    assert entries[0][:2] == ("softmax", "tridal")
    taken = {origin: problem for _, origin, problem in entries if "its name is taken" in str(problem)}
    softmax = "its name is taken: tridal has an op 'softmax'"
    same = "its name is taken: alpha 1.0 has an op 'same'"
    assert taken == {"thief 1.0": softmax, "second 1.0": softmax, "beta 1.0": same}


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("softmax", "softmax"), ("rms_norm", "rms_norm"), ("cross_entropy_smooth", "cross_entropy"),
        ("cross_entropy_with_lse", "cross_entropy"),  # with the suffix "_backward"
    ],
)  # fmt: skip
def test_the_names_of_ops_and_of_their_kernels_are_taken(name: str, owner: str) -> None:
    kernels = tuple(replace(kernel, name=kernel.name.replace("log_softmax", name)) for kernel in LOG_SOFTMAX.kernels)
    with pytest.raises(PluginError, match=f"its name is taken: tridal has an op {owner!r}"):
        table.check(replace(LOG_SOFTMAX, name=name, kernels=kernels))
    table.check(SOFTMAX)


def test_unknown_op_suggests_similar_names() -> None:
    with pytest.raises(PlanError, match="unknown op 'softmx'; did you mean 'softmax'"):
        table.kernel_named("softmx")


def test_ops_with_equal_traits_are_equal_problems() -> None:
    """They get equal plans, because a plan depends on nothing but the problem."""
    other = RowKernel("other_backward", "other", ("g", "z"), (Statistic("total", "sum", term="f"),), ("h",))
    layout = row_layout((64, 1000), (1000, 1), 1)
    assert layout is not None
    dtypes = ("float32", "float32", "float32")
    assert KernelCall(other, layout, dtypes).problem == KernelCall(SOFTMAX.backward, layout, dtypes).problem
