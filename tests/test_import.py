"""Importing tridal pulls in torch and nothing that compiles, talks to a device or draws."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("triton", "torch_npu", "typer", "rich", "matplotlib", "yaml")


def imported(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return {name for name in result.stdout.split() if name}


def test_import_pulls_in_nothing_heavy() -> None:
    before = imported("import torch")
    after = imported("import tridal")
    assert "torch" in after
    packages = {name.partition(".")[0] for name in after - before}
    assert not packages & set(HEAVY)
    assert not {name for name in packages if name.startswith("tridal_")}, "backends are loaded on first need"


def test_a_cpu_tensor_pulls_in_no_compiler() -> None:
    modules = imported("import torch, tridal; tridal.softmax(torch.zeros(2, 3))")
    assert "triton" not in modules
    assert "torch_npu" not in modules


def test_the_settings_and_the_registry_need_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"  # importing it raises
        "from tridal import registry, settings; settings.current(); registry.registered()"
    )
    assert "tridal.registry" in imported(script)
