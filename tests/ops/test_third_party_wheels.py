"""The wheels of the ops of third parties are installed: entry points, calls, plans for absent devices, their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_helpers import install, run_python

PACKAGES = [Path(__file__).parents[1] / name for name in ("row_op_package", "tensor_op_package")]
CODE = """
    import sys
    import pytest, torch, tridal
    from tridal.ops import planning, table
    from tridal_l2norm import l2_norm
    from tridal_skipnorm import skip_norm, logsumexp, mean_energy

    names = "skip_norm", "logsumexp", "mean_energy"
    assert {entry.name: entry.origin for entry in table.registered() if entry.origin != "tridal"} == {
        "l2_norm": "tridal-l2norm 1.0.0", **dict.fromkeys(names, "tridal-skipnorm 1.0.0"),
    }
    with tridal.use(device="interpreter", fallback="error"):
        x, weight, skip = torch.randn(3, 5, requires_grad=True), torch.ones(5), torch.zeros(5)
        y, total = skip_norm(x, weight, skip, residual=x, eps=1e-5)
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(2 * x, (5,), eps=1e-5))
        torch.testing.assert_close(logsumexp(x, 0), torch.logsumexp(x, 0))
        torch.testing.assert_close(l2_norm(x, 0), torch.nn.functional.normalize(x, dim=0))
        torch.testing.assert_close(mean_energy(x), x.square().sum(1).mean())
        (y.sum() + total.sum() + logsumexp(x).sum() + mean_energy(x) + l2_norm(x).sum()).backward()
    for name in ("l2_norm", *names):
        for kernel in (name, f"{name}_backward"):
            once = kernel in ("logsumexp", "mean_energy")  # it reads each element once: it writes numbers per row only
            wide = {"sm_90": "column_loop" if once else "cooperative", "ascend910b": "column_loop"}
            for arch, schedule in wide.items():
                plans = [planning.plan(4096, cols, arch=arch, dtype="bfloat16", op=kernel) for cols in (781, 300_000)]
                assert [plan.schedule for plan in plans] == ["whole_row", schedule], (kernel, arch)
    selected = "declaration or 37x53 and stepped"
    sys.exit(pytest.main(["TESTS", "-qq", "-p", "no:cacheprovider", "-k", selected]))
"""


@pytest.mark.slow("it builds two wheels, and compiles the kernels of one of them for absent devices")
def test_installed_ops_compute_have_plans_and_pass_their_tests(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = CODE.replace("TESTS", str(PACKAGES[0] / "test_l2_norm.py"))
    run_python(code, install(tmp_path, *PACKAGES), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # plugins take a second
