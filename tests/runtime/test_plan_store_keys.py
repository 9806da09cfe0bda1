"""The keys of stored plans: what they depend on."""

from __future__ import annotations

import importlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import tridal
from call_helpers import kernel_call
from op_sources import make_kernel
from tridal import kernels
from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend
from tridal.runtime import compiler, plan_store
from tridal.runtime.specialization import KernelCall

CUDA = registry.get("cuda")
H100 = CUDA.architectures()["sm_90"]
CALL = kernel_call((4096, 640))


def fresh_code() -> None:
    """Digests the files again, as a new process does."""
    plan_store._code.cache_clear()
    compiler._entry.cache_clear()


def name_of(call: KernelCall = CALL, backend: Any = CUDA, device: Any = H100, **options: Any) -> str | None:
    return plan_store.PlanFile(call, backend, device, options)._name


def test_equal_calls_have_equal_keys() -> None:
    assert name_of(kernel_call((4000, 640))) == name_of()
    assert name_of(kernel_call((4096, 640), addresses=(64, 128))) == name_of()


@pytest.mark.parametrize(
    "call",
    [
        kernel_call((2048, 640)),
        kernel_call((4096, 641)),
        kernel_call((1, 640)),
        kernel_call((640, 4096), dim=0),
        kernel_call((4096, 640), dtypes="bfloat16"),
        kernel_call((4096, 640), addresses=(64, 4)),
        kernel_call((4096, 640), strides=(1280, 2)),
        kernel_call((4096, 640), strides=(1 << 28, 1)),
        replace(CALL, invariant=True),
        replace(CALL, kernel=CALL.kernel.bind(SOME=1)),
    ],
    ids=[
        "bucket",
        "columns",
        "one row",
        "dim",
        "dtype",
        "alignment",
        "strides",
        "wide strides",
        "invariant",
        "constant",
    ],
)
def test_the_key_depends_on_the_call(call: KernelCall) -> None:
    assert name_of(call) != name_of()


def test_the_key_depends_on_the_device_the_options_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [name_of(), name_of(device=replace(H100, cores=114)), name_of(num_programs=4)]
    keys += [name_of(device=CUDA.architectures()["sm_80"]), name_of(backend=CheckedBackend(CUDA.plugin, "tridal 9.9"))]
    for module, name in ((tridal, "__version__"), (sys.modules["triton"], "__version__")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, "99.0")
            fresh_code()
            keys.append(name_of())
    fresh_code()
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert name_of() == keys[0]


def test_an_edited_function_of_the_op_has_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_kernel(tmp_path, monkeypatch)
    call = kernel_call((4096, 640), kernel=before, parameters=(1.0,))
    first = name_of(call)
    file = tmp_path / f"{before.module}.py"
    file.write_text(file.read_text().replace("return x * x", "return x * x * 1.5"))
    del sys.modules[before.module]
    assert name_of(call) != first


def test_an_edited_schedule_has_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = name_of()
    shutil.copytree(kernels.__path__[0], tmp_path / "kernels")
    monkeypatch.setattr(kernels, "__path__", [str(tmp_path / "kernels")])
    fresh_code()
    assert name_of() == first
    with (tmp_path / "kernels" / "tiles.py").open("a") as file:
        file.write("# edited\n")
    fresh_code()
    assert name_of() != first
    fresh_code()


CLASS = "from tridal_cuda import Cuda\n\n\nclass Vendor(Cuda):\n    name = 'vendor'\n\n\nbackend = Vendor()\n"
MODULE = """\
from tridal.devices.checked_backend import ATTRIBUTES
from tridal_cuda import Cuda
from vendor_plans import plan

members = (*ATTRIBUTES, "stream", "guard", "resources", "architectures", "unavailable", "device_count", "properties")
globals().update({name: getattr(Cuda(), name) for name in members})
name = "vendor"
"""


@pytest.mark.parametrize(
    ("source", "edited"),
    [
        (CLASS, "vendor_gpu/__init__.py"),
        (CLASS, "vendor_gpu/planning.py"),
        (CLASS, "vendor_gpu/data/limits.json"),
        (CLASS, "vendor_table.json"),
        (MODULE, "vendor_gpu/__init__.py"),
        (MODULE, "vendor_gpu/data/limits.json"),
        (MODULE, "vendor_plans.py"),
    ],
)
def test_an_edited_file_of_a_backend_has_a_new_key(
    source: str, edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend is an instance or a module. Its distribution also has a file outside of the package."""
    files = {"vendor_gpu/__init__.py": source, "vendor_gpu/planning.py": "TILE = 1024\n", "vendor_table.json": "{}"}
    files |= {
        "vendor_gpu/data/limits.json": "{}",
        "vendor_plans.py": "def plan(problem, device, probe, options): ...\n",
    }
    files |= {"vendor-1.0.dist-info/METADATA": "Name: vendor\nVersion: 1.0\n"}
    files |= {"vendor-1.0.dist-info/RECORD": "vendor_table.json,,\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("vendor_gpu")
    backend = CheckedBackend(getattr(module, "backend", module), "vendor 1.0")
    first = name_of(backend=backend)
    (tmp_path / "unrelated.py").write_text("")
    fresh_code()
    assert name_of(backend=backend) == first
    assert first is not None
    with (tmp_path / edited).open("a") as file:
        file.write(" \n")
    fresh_code()
    assert name_of(backend=backend) != first
    for name in ("vendor_gpu", "vendor_plans"):
        sys.modules.pop(name, None)


def test_interpreted_plans_and_those_of_backends_in_code_are_not_stored() -> None:
    interpreter = registry.get("interpreter")
    assert name_of(backend=interpreter, device=interpreter.properties(0)) is None
    assert name_of(backend=CUDA.plugin) is None
    assert name_of(backend=CheckedBackend(CUDA.plugin, registry.IN_CODE)) is None
