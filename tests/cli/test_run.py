"""`python -m tridal.run`: programs that it runs, its help, and one sentence for everything that is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tridal
from processes import python
from tridal import run
from tridal.devices import registry
from tridal.errors import DeviceUnavailableError
from tridal.models import environment


def run_python(*arguments: str, cwd: Path, new: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    return python(*arguments, cwd=cwd, new=new, code=None, **{"TRIDAL_DEVICE": "interpreter", **variables})


def test_programs_without_tridal_use_its_kernels(backend: Any, tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "print(sys.argv[1:], __name__, torch.softmax(torch.zeros(2), 0).tolist())\n"
        "import tridal\n"
        "with tridal.record_calls() as calls: torch.softmax(torch.zeros(2, device=tridal.device()), 0)\n"
        "print(calls[0].backend)\n"
    )
    (tmp_path / "program.py").write_text(program)
    for how in (("program.py",), ("-m", "program")):
        done = run_python("-m", "tridal.run", *how, "a", "-b", cwd=tmp_path, TRIDAL_DEVICE=backend.name)
        assert done.stdout.splitlines() == ["['a', '-b'] __main__ [0.5, 0.5]", backend.name], done.stderr


PROGRAM = """
import sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, type(__builtins__), sys.argv, sys.path[0])
print(sys.modules["__main__"].__dict__ is globals(), "USAGE" in globals())
def fail() -> int:
    raise ValueError("a fault of the program")
print(fail.__annotations__)
fail()
"""


@pytest.mark.parametrize("how", [("program.py",), ("folder",), ("-m", "folder")], ids=" ".join)
def test_programs_run_as_with_python(how: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text("")
    for file in ("program.py", "folder/__main__.py"):
        (tmp_path / file).write_text(PROGRAM)
    expected, done = (
        run_python(*prefix, *how, "a", "-b", cwd=tmp_path, new=True) for prefix in ((), ("-m", "tridal.run"))
    )
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout) == (1, expected.stdout)
    in_runpy = re.compile(r'  File "[^"]*\brunpy(\.py)?[>"].*\n(    .*\n)?')  # Python's own frames with -m
    assert done.stderr == in_runpy.sub("", expected.stderr)
    assert "a fault of the program" in done.stderr


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder. `main` changes attributes of sys and the module `__main__`, which are restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return tmp_path


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Returns the exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(SystemExit) as raised:
        run.main()
    return raised.value.code


@pytest.mark.parametrize("arguments", [("-h",), ("--help",), (), ("-m",), ("--fast", "train.py"), ("-c", "pass")])
def test_help_and_wrong_usage_print_the_usage(
    arguments: tuple[str, ...], in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments in (("-h",), ("--help",)):
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        run.main()
        assert capsys.readouterr() == (run.USAGE + "\n", "")
    else:
        assert main(monkeypatch, *arguments) == 2
        assert capsys.readouterr() == ("", run.USAGE + "\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train.py",), "there is no file 'train.py' in "),
        (("empty",), "the folder 'empty' has no __main__.py"),
        (("-m", "no_such_module"), "there is no module 'no_such_module'"),
        (("-m", "no_such_package.train"), "No module named 'no_such_package'"),
        (("-m", "package"), "there is no module 'package.__main__'"),
        (("-m", ""), "there is no module ''"),
        (("-m", "math"), "there is no module 'math'"),
    ],
)
def test_missing_program_is_one_sentence(
    arguments: tuple[str, ...],
    message: str,
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (in_folder / "empty").mkdir()
    (in_folder / "package").mkdir()
    (in_folder / "package" / "__init__.py").write_text("")
    assert main(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tridal.run: {message}")
    assert error.count("\n") == 1


def test_missing_device_is_one_sentence(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "train.py").write_text("raise AssertionError('the program must not run')")
    absent = next((b for b in registry.loaded() if b.unavailable() is not None), None)
    if absent is None:
        pytest.skip("every backend is available here")
    with tridal.use(device=absent.name):
        assert main(monkeypatch, "train.py") == 1
        with pytest.raises(DeviceUnavailableError) as raised:
            registry.serving(absent.device_type)
    assert capsys.readouterr().err == f"tridal.run: {raised.value}\n"


@pytest.mark.parametrize(("variable", "value"), [("TRIDAL_LOG_CALLS", "all"), ("TRIDAL_KERNELIZE", "yes please")])
def test_wrong_variable_is_one_sentence(variable: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError('the program must not run')")
    variables = {variable: value, "TRIDAL_OVERRIDE_TORCH": "1"}
    done = run_python("-m", "tridal.run", "train.py", cwd=tmp_path, **variables)
    assert done.stderr == f"tridal.run: environment {variable}: expected 1 or 0, found {value!r}\n"
    assert done.returncode == 1


def test_calls_of_the_program_are_counted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch; torch.softmax(torch.zeros(2, 3), 0)")
    done = run_python("-m", "tridal.run", "train.py", cwd=tmp_path, TRIDAL_LOG_CALLS="1")
    assert done.stderr == "tridal: 1 of softmax by interpreter: whole_row\n"


def test_error_of_the_program_is_not_hidden(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_folder / "train.py").write_text("import no_such_module_of_the_program")
    monkeypatch.setattr(sys, "argv", ["run.py", "train.py"])
    monkeypatch.setattr(tridal, "override_torch", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_the_program"):
        run.main()


def test_kernelize_variable_replaces_the_modules_of_new_models(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(
        "import sys, torch\n"
        "assert 'transformers' not in sys.modules\n"
        "import transformers\n"
        "sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)\n"
        "ids = dict(vocab_size=19, bos_token_id=0, eos_token_id=1)\n"
        "config = transformers.LlamaConfig(**sizes, **ids)\n"
        "tokens = torch.ones(1, 4, dtype=torch.long)\n"
        "for make in (transformers.LlamaForCausalLM, transformers.AutoModelForCausalLM.from_config):\n"
        "    model = make(config)\n"
        "    print(model(tokens).logits.shape, [type(m).__name__ for m in model.modules() if 'Norm' in str(type(m))])\n"
        "model.save_pretrained('saved')\n"
        "loaded = transformers.AutoModelForCausalLM.from_pretrained('saved')\n"
        "assert torch.equal(loaded(tokens).logits, model(tokens).logits)\n"
        "assert torch.equal(loaded.model.norm.weight, torch.ones(16))\n"
    )
    done = run_python(
        "-m", "tridal.run", "train.py", cwd=tmp_path, TRIDAL_KERNELIZE="1", TRIDAL_LOG_CALLS="1", HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 0, done.stderr
    norms = "['LlamaRMSNorm', 'LlamaRMSNorm', 'LlamaRMSNorm']"
    assert done.stdout.splitlines() == [f"torch.Size([1, 4, 19]) {norms}"] * 2
    assert "tridal: 12 of rms_norm by interpreter: whole_row" in done.stderr


def test_models_of_a_program_that_imported_transformers_before_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class PreTrainedModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)
            self.post_init()

        def post_init(self) -> None:
            pass

    monkeypatch.setitem(sys.modules, environment.MODULE, SimpleNamespace(PreTrainedModel=PreTrainedModel))
    monkeypatch.setenv(environment.VARIABLE, "1")
    finders = list(sys.meta_path)
    environment.start_from_environment()
    assert sys.meta_path == finders
    with tridal.use(device="interpreter"), tridal.record_calls() as calls:
        PreTrainedModel().norm(torch.randn(2, 4))
    assert "layer_norm" in {call.op for call in calls}
