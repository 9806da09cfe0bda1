"""Triton's cache folder that cannot be written: kernels are compiled in a temporary folder, or an error names it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import tridal
from tridal.errors import PlanError
from tridal.ops import planning
from tridal.runtime.compiler import compile_kernel, resources
from tridal.runtime.triton_cache import with_cache

COMPILED = next(arch for arch, (backend, _) in planning.example_architectures().items() if not backend.interpreted)
VARIABLE = "TRITON_CACHE_DIR"


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cache folder that cannot be made, because a file is where its parent should be."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "cache"))
    return str(tmp_path / "file" / "cache")


def test_plan_is_made_without_a_cache_and_a_warning_names_the_variable(
    unusable: str, caplog: pytest.LogCaptureFixture
) -> None:
    compile_kernel.cache_clear()
    resources.cache_clear()
    assert tridal.plan(7, 871, arch=COMPILED).launched_programs >= 1
    (message,) = caplog.messages
    assert message.startswith(f"Triton's cache folder {unusable!r} cannot be written (Not a directory): the kernels ")
    assert message.endswith(f"set {VARIABLE} to a folder that can be written")
    caplog.clear()
    assert tridal.plan(7, 2000, arch=COMPILED).launched_programs >= 1
    assert caplog.messages == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_temporary_folder_is_used_and_the_error_names_both_if_it_cannot_be_written(number: int, unusable: str) -> None:
    folders = []

    def compile() -> None:
        folders.append(os.environ[VARIABLE])
        raise OSError(number, os.strerror(number), f"{folders[-1]}/kernel")

    expected = (
        rf"cache folder '{unusable}' cannot be written \({os.strerror(number)}\), nor .*: set {VARIABLE} to a folder"
    )
    with pytest.raises(PlanError, match=expected):
        with_cache(compile)
    assert folders[0] == unusable != folders[1]
    assert os.environ[VARIABLE] == unusable
