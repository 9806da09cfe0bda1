"""Importing tridal imports torch, and no compiler, driver, plotting or command-line package."""

from __future__ import annotations

from processes import python

HEAVY = ("triton", "torch_npu", "typer", "rich", "matplotlib", "yaml")


def imported_modules(statement: str, new: bool = False) -> set[str]:
    return set(python("-c", f"{statement}\nimport sys; print(*sys.modules)", new=new).stdout.split())


def test_import_loads_no_heavy_package_and_no_backend() -> None:
    before = imported_modules("import torch")
    after = imported_modules("import tridal", new=True)
    assert "torch" in after
    packages = {name.partition(".")[0] for name in after - before}
    assert not packages & set(HEAVY)
    assert not {name for name in packages if name.startswith("tridal_")}, "backends are loaded on first use"


def test_softmax_of_a_cpu_tensor_does_not_import_triton() -> None:
    modules = imported_modules("import torch, tridal; tridal.softmax(torch.zeros(2, 3))")
    assert "triton" not in modules
    assert "torch_npu" not in modules


def test_settings_and_registry_do_not_need_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"  # importing it raises
        "from tridal import registry, settings; settings.current(); registry.registered()"
    )
    assert "tridal.registry" in imported_modules(script, new=True)
