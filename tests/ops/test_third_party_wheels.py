"""The wheels of the ops of third parties are installed: entry points, commands, tests, plans and compiled kernels."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from backend_helpers import install_wheel, run_python
from torch_versions import TRITON

L2NORM, SKIPNORM = (Path(__file__).parents[1] / name for name in ("row_op_package", "tensor_op_package"))
KERNELS = (
    "l2_norm", "l2_norm_backward", "skip_norm", "skip_norm_backward", "logsumexp", "logsumexp_backward", "mean_energy",
    "mean_energy_backward",
)  # fmt: skip


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheels."""
    folder = tmp_path_factory.mktemp("third-party-ops")
    install_wheel(L2NORM, folder, "tridal_l2norm-1.0.0")
    return install_wheel(SKIPNORM, folder, "tridal_skipnorm-1.0.0")


CALLS = """
    import torch, tridal
    from tridal.ops import table
    from tridal_l2norm import l2_norm
    from tridal_skipnorm import skip_norm, logsumexp, mean_energy

    assert {entry.name: entry.origin for entry in table.registered() if entry.origin != "tridal"} == {
        "l2_norm": "tridal-l2norm 1.0.0",
        **{name: "tridal-skipnorm 1.0.0" for name in ("skip_norm", "logsumexp", "mean_energy")},
    }
    with tridal.use(device="interpreter", fallback="error"):
        x, weight, skip = torch.randn(3, 5, requires_grad=True), torch.ones(5), torch.zeros(5)
        y, total = skip_norm(x, weight, skip, residual=x, eps=1e-5)
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(2 * x, (5,), eps=1e-5))
        torch.testing.assert_close(logsumexp(x, 0), torch.logsumexp(x, 0))
        torch.testing.assert_close(l2_norm(x, 0), torch.nn.functional.normalize(x, dim=0))
        torch.testing.assert_close(mean_energy(x), x.square().sum(1).mean())
        (y.sum() + total.sum() + logsumexp(x).sum() + mean_energy(x) + l2_norm(x).sum()).backward()
"""


def test_the_installed_ops_are_listed_and_compute(site_folder: Path) -> None:
    run_python(CALLS, site_folder)


@pytest.mark.slow("it runs pytest in a new process")
def test_the_tests_of_a_package_pass(site_folder: Path) -> None:
    code = f"""
        import pytest, sys
        selected = "declaration or 37x53 and stepped or 17x211 and nan"
        sys.exit(pytest.main([{str(L2NORM / "test_l2_norm.py")!r}, "-qq", "-p", "no:cacheprovider", "-k", selected]))
    """
    run_python(code, site_folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # plugins take a second


PLANS = """
    import json
    from tridal.ops import planning
    from tridal.runtime import compiler

    schedules, compiled = {}, []
    for kernel in KERNELS:
        schedules[kernel] = []
        for cols in (781, 300_000) if ARCH != "gfx942" else (781,):
            _, device, plan = planning.planned(4096, cols, arch=ARCH, dtype="bfloat16", op=kernel)
            schedules[kernel].append(plan.schedule)
            if cols == 781 and compiler.can_compile(device.target):
                call = planning.matrix_call(4096, cols, dtype="bfloat16", op=kernel)
                compiler.compile_kernel(call.specialize(plan.config), device.target)
                compiled.append(kernel)
    print(json.dumps([schedules, compiled]))
"""


OTHER_ARCH = pytest.mark.nightly("sm_90 here, and test_backend_rocm_kernels.py for kernels of all kinds")


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("gfx942", marks=OTHER_ARCH), "ascend910b"])
def test_kernels_of_both_directions_are_planned_and_compiled_for_absent_devices(site_folder: Path, arch: str) -> None:
    """Triton 3.4 and older need ld.lld to compile for AMD GPUs, and the installed Triton does not know NPUs."""
    pytest.importorskip("triton")
    if arch == "gfx942" and TRITON < (3, 5):
        pytest.skip("needs Triton 3.5")
    code = f"ARCH, KERNELS = {arch!r}, {KERNELS!r}\n" + textwrap.dedent(PLANS)
    schedules, compiled = json.loads(run_python(code, site_folder))
    assert compiled == ([] if arch == "ascend910b" else [*KERNELS])
    wide = {"sm_90": ["cooperative"], "ascend910b": ["column_loop"], "gfx942": []}[arch]
    expected = {kernel: ["whole_row", *wide] for kernel in KERNELS}
    if arch == "sm_90":  # it reads each element once, because it writes numbers per row only
        expected["logsumexp"] = expected["mean_energy"] = ["whole_row", "column_loop"]
    assert schedules == expected


COMMAND = """
    import sys
    from tridal.cli import main
    sys.argv = ["tridal", *{arguments}]
    main()
"""


def test_the_command_bench_measures_both_directions(site_folder: Path, tmp_path: Path) -> None:
    """The sum of skip_norm is a second result, and its gradient is read."""
    op, traffic = "skip_norm", {"forward": 4, "backward": 4}
    size = ("--rows", "4", "--cols", "13", "--dtype", "bfloat16")
    arguments = ("bench", "--op", op, *size, "--device", "interpreter", "--json", "--output", str(tmp_path))
    document = json.loads(run_python(COMMAND.format(arguments=arguments), site_folder))
    assert document["passes"] == traffic
    measured = {(row["provider"], row["direction"]): row for row in document["measurements"]}
    assert {key for key in measured if key[0] != "copy"} == {
        (provider, direction) for provider in ("tridal", "reference") for direction in ("forward", "backward")
    }
    for (provider, direction), row in measured.items():
        assert row["skipped"] is None
        useful_bytes = (2 if provider == "copy" else traffic[direction]) * 4 * 13 * 2
        assert row["gbps"] * row["ms"] * 1e6 == pytest.approx(useful_bytes)
