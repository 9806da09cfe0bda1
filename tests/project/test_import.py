"""Importing tridal imports torch, and no compiler, driver, plotting or command-line package."""

from __future__ import annotations

from processes import python

HEAVY = {"triton", "torch_npu", "typer", "rich", "matplotlib", "yaml"}


def imported_modules(statement: str) -> set[str]:
    return set(python("-c", f"import sys\n{statement}\nprint(*sys.modules)").stdout.split())


def test_import_and_softmax_of_a_cpu_tensor_load_no_heavy_package_and_no_backend() -> None:
    torch_alone = imported_modules("import torch")
    imported = imported_modules("import tridal") - torch_alone
    assert "tridal.library" in imported
    packages = {name.partition(".")[0] for name in imported}
    assert not packages & HEAVY
    assert not {name for name in packages if name.startswith("tridal_")}, "backends are loaded on first use"
    used = imported_modules("import torch, tridal; tridal.softmax(torch.zeros(2, 3))") - torch_alone
    assert not {"triton", "torch_npu"} & used


def test_settings_and_registry_do_not_need_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"  # importing it raises
        "from tridal import registry, settings; settings.current(); registry.registered()"
    )
    python("-c", script, new=True)
