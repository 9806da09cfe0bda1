"""The search for the settings file: parents of the working folder, the user's folder, and files with a wrong name."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tridal.devices import settings, settings_file
from tridal.errors import SettingsError


@pytest.fixture
def project(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the working folder `package/tests`."""
    (no_settings / "package" / "tests").mkdir(parents=True)
    monkeypatch.chdir(no_settings / "package" / "tests")
    settings_file._warn.cache_clear()
    return no_settings


def test_file_in_the_nearest_parent_folder_is_read(project: Path) -> None:
    (project / "tridal.yaml").write_text("device: outer\n")
    assert settings.reload().sources["device"] == f"{project}/tridal.yaml:1"
    (project / "package" / "tridal.yaml").write_text("device: inner\n")
    assert settings.reload().device == "inner"
    Path("tridal.yaml").write_text("device: here\n")
    assert (settings.reload().device, settings.current().sources["device"]) == ("here", "tridal.yaml:1")


def test_file_in_a_parent_folder_precedes_the_file_of_the_user(project: Path) -> None:
    user = project / "user" / "tridal" / "tridal.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("device: user\n")
    assert settings.reload().device == "user"
    (project / "tridal.yaml").write_text("device: project\n")
    assert settings.reload().device == "project"
    reason = f"{project}/tridal.yaml takes its place, because only one settings file is read"
    assert list(settings_file.ignored()) == [(user, reason)]


@pytest.mark.parametrize("name", ["tridal.yml", ".tridal.yaml", ".tridal.yml"])
@pytest.mark.parametrize("folder", ["package/tests", ".", "user/tridal"])
def test_file_with_a_similar_name_is_reported_once(
    project: Path, folder: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = project / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("device: ignored\n")
    assert settings.reload().device == "auto"
    settings.reload()
    (warning,) = caplog.messages
    shown = name if folder == "package/tests" else path
    assert warning == f"the settings in {shown} are ignored: only a file with the name tridal.yaml is read; rename it"


def test_config_yaml_in_the_folder_of_the_user_is_reported_and_others_are_not(project: Path) -> None:
    Path("config.yaml").write_text("model: large\n")
    assert list(settings_file.ignored()) == []
    path = project / "user" / "tridal" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("device: cpu\n")
    assert [found for found, _ in settings_file.ignored()] == [path]


@pytest.mark.parametrize("table", ["[tool.tridal]", "[ tool . tridal ]", "[tool.tridal.backends.npu]"])
def test_table_in_pyproject_is_reported(project: Path, table: str, caplog: pytest.LogCaptureFixture) -> None:
    (project / "pyproject.toml").write_text(f'[project]\nname = "x"\n\n{table}\ndevice = "cpu"\n')
    assert settings.reload().device == "auto"
    (warning,) = caplog.messages
    assert warning == (
        f"the settings in {project}/pyproject.toml are ignored: [tool.tridal] is not read; "
        "move the settings to tridal.yaml in the same folder"
    )


@pytest.mark.parametrize("text", ['[project]\nname = "tridal"\n', "[tool.tridalic]\n", "# [tool.tridal]\n"])
def test_other_pyproject_is_not_reported(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text)
    assert list(settings_file.ignored()) == []


def test_file_in_tridal_config_suppresses_warnings(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path("tridal.yml").write_text("device: chosen\n")
    monkeypatch.setenv("TRIDAL_CONFIG", "tridal.yml")
    with caplog.at_level(logging.WARNING):
        assert settings.reload().device == "chosen"
    assert caplog.messages == []
    assert list(settings_file.ignored()) == []


def test_removed_working_folder_is_no_error(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert settings.reload().device == "auto"
    monkeypatch.chdir(tmp_path)  # so that the fixture can restore the working folder


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device"])
def test_error_for_a_file_that_cannot_be_read_names_the_variable(
    project: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = {"folder": project, "device": Path("/dev/zero")}.get(kind, project / "chosen.yaml")
    if kind == "fifo":
        os.mkfifo(path)
    monkeypatch.setenv("TRIDAL_CONFIG", str(path))
    with pytest.raises(SettingsError, match=rf"environment TRIDAL_CONFIG: {path}: cannot be read: "):
        settings.reload()


def test_ignored_files_that_cannot_be_read_are_no_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(project / "pyproject.toml")
    (project / "tridal.yaml").symlink_to("tridal.yaml")
    user = project / "user" / "tridal"
    user.mkdir(parents=True)
    (user / "config.yaml").write_text("device: cpu\n")
    Path("tridal.yaml").write_text("device: cpu\n")
    assert settings.reload().device == "cpu"
    assert [path for path, _ in settings_file.ignored()] == [project / "tridal.yaml", user / "config.yaml"]
    user.chmod(0)
    owner = os.geteuid()
    if owner == 0:  # root can read every folder
        os.seteuid(65534)
    try:
        settings.reload()
    finally:
        os.seteuid(owner)
        user.chmod(0o700)
