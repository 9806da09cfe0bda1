"""An op of a third party: the wheel of tests/row_op_package is installed and used without a change in tridal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_helpers import install_wheel, run_python

PACKAGE = Path(__file__).with_name("row_op_package")


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel of tests/row_op_package."""
    return install_wheel(PACKAGE, tmp_path_factory.mktemp("third-party-op"), "tridal_l2norm-1.0.0")


def test_the_package_has_fewer_than_60_lines_of_code():
    sources = [file.read_text().splitlines() for file in (PACKAGE / "tridal_l2norm").glob("*.py")]
    code = [line for lines in sources for line in lines if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert 20 < len(code) < 60


CALLS = """
    import json, torch, tridal
    from tridal_l2norm import l2_norm
    from torch.autograd import gradcheck, gradgradcheck
    from torch.testing import assert_close

    def expected(x, dim=-1):
        return torch.nn.functional.normalize(x, dim=dim, eps=1e-6)

    def gradient(f, x):
        return torch.autograd.grad(f(x).sin().sum(), x)[0]

    torch.manual_seed(0)
    with tridal.use(device="interpreter", fallback="error"):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            for shape, dim in (((5, 37), -1), ((37, 5), 0), ((3, 40, 7), 1), ((2, 3000), -1), ((4, 6, 5), -3)):
                x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
                bound = 2 * torch.finfo(dtype).eps if dtype.itemsize == 2 else None  # torch rounds each step to 16 bits
                assert_close(l2_norm(x, dim), expected(x, dim), atol=bound, rtol=bound)
                dx, expected_dx = gradient(lambda z: l2_norm(z, dim), x), gradient(lambda z: expected(z, dim), x)
                assert_close(dx, expected_dx, atol=bound, rtol=bound)
        x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        assert_close(l2_norm(x[:, ::2], 1), expected(x[:, ::2], 1))
        assert gradcheck(l2_norm, x) and gradgradcheck(l2_norm, x)
        assert_close(l2_norm(1e-9 * x, eps=1e-3), 1e-6 * x)
        compiled = torch.compile(lambda z: l2_norm(z, 0, eps=1e-6), fullgraph=True, backend="aot_eager")
        assert_close(gradient(compiled, x), gradient(lambda z: expected(z, 0), x))
        assert_close(torch.func.vmap(l2_norm)(x), expected(x))
        tangent = torch.randn_like(x)
        pushed, wanted = (torch.func.jvp(f, (x,), (tangent,))[1] for f in (l2_norm, expected))
        assert_close(pushed, wanted)
        assert_close(torch.func.vmap(torch.func.grad(lambda z: l2_norm(z).sin().sum()))(x), gradient(expected, x))
        torch.library.opcheck(torch.ops.tridal.l2_norm.default, (torch.randn(3, 5), 1, torch.float32, 1e-3))
        out = l2_norm(torch.arange(4), dtype=torch.float32)
    assert_close(out, expected(torch.arange(4.0)))
    assert_close(l2_norm(torch.ones(2, 4)), torch.full((2, 4), 0.5))  # torch computes it where no backend does
    print(json.dumps("passed"))
"""


def test_calls_gradients_compile_and_transforms(site_folder):
    assert json.loads(run_python(CALLS, site_folder)) == "passed"


def test_wrong_arguments_raise_errors_that_name_the_op(site_folder):
    code = """
        import torch
        from tridal_l2norm import l2_norm
        x = torch.ones(2)
        for arguments, keywords in (((x, 3), {}), ((x.int(),), {}), ((x,), {"epsilon": 1.0})):
            try:
                l2_norm(*arguments, **keywords)
            except Exception as error:
                print(type(error).__name__, error)
    """
    lines = run_python(code, site_folder).splitlines()
    assert lines[0].startswith("DimensionError dim 3 is out of range")
    assert lines[1].startswith("DTypeError l2_norm of torch.int32 is not defined")
    assert lines[2] == "TypeError l2_norm() got an unexpected keyword argument 'epsilon'"


CASES = """
    import json
    from tridal import registry, testing
    backend = registry.available("interpreter")
    cases = testing.cases(backend, ["l2_norm"])
    chosen = [case for case in cases if case.plan != "planned" and case.shape in ((37, 53), (781, 64), (3, 300, 33))]
    chosen += [case for case in cases if case.plan == "planned" and case.values != "normal" and len(case.shape) < 2]
    chosen = chosen[::2] + [case for case in cases if case.layout != "contiguous" and case.shape == (37, 53)]
    results = [testing.run_case(case, backend) for case in chosen]
    failed = [(result.name, result.message) for result in results if not result.passed]
    print(json.dumps([len(cases), len(results), sorted({case.plan for case in chosen}), failed]))
"""


def test_conformance_cases_exist_and_pass_on_every_schedule_of_the_interpreter(site_folder):
    number, run, plans, failed = json.loads(run_python(CASES, site_folder))
    assert failed == []
    assert number > 350
    assert run > 30
    assert set(plans) >= {"whole_row", "column_loop", "whole_row+peel", "whole_row+reload"}


def test_the_tests_of_the_package_pass(site_folder):
    code = f"""
        import pytest, sys
        selected = "declaration or 37x53 and stepped or 17x211 and nan"
        sys.exit(pytest.main([{str(PACKAGE / "test_l2_norm.py")!r}, "-qq", "-p", "no:cacheprovider", "-k", selected]))
    """
    run_python(code, site_folder)


def test_plans_for_absent_devices(site_folder):
    code = """
        import json, tridal
        print(json.dumps([
            [tridal.plan(4096, cols, op=op, arch=arch, dtype="float16").schedule for cols in (781, 300_000)]
            for arch in ("sm_90", "ascend910b") for op in ("l2_norm", "l2_norm_backward")
        ]))
    """
    cuda, npu = ["whole_row", "cooperative"], ["whole_row", "column_loop"]
    assert json.loads(run_python(code, site_folder)) == [cuda, cuda, npu, npu]
