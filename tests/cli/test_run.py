"""`python -m tridal.run`: programs that it runs, its help, and one sentence for everything that is missing."""

from __future__ import annotations

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

PROGRAM = """
import sys, torch
print(__name__, sys.modules["__main__"].__dict__ is globals(), sys.argv[1:])
print(__file__, sys.path[0], __spec__ and __spec__.name)
torch.softmax(torch.zeros(2, 3), 0)
import tridal
with tridal.record_calls() as calls: torch.softmax(torch.zeros(2, device=tridal.device()), 0)
print(calls[0].backend)
raise ValueError("a fault of the program")
"""


@pytest.mark.parametrize("how", [("program.py",), ("folder",), ("-m", "folder")], ids=" ".join)
def test_programs_run_as_with_python_and_use_the_kernels(how: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text("")
    for file in ("program.py", "folder/__main__.py"):
        (tmp_path / file).write_text(PROGRAM)
    variables = {"TRIDAL_DEVICE": "interpreter", "TRIDAL_LOG_CALLS": "1"}
    done = python("-m", "tridal.run", *how, "a", "-b", cwd=tmp_path, code=1, **variables)
    file, first, name = {
        "program.py": ("program.py", ".", "None"),
        "folder": ("folder/__main__.py", "folder", "__main__"),
        "-m": ("folder/__main__.py", ".", "folder.__main__"),
    }[how[0]]
    expected = [
        "__main__ True ['a', '-b']",
        f"{tmp_path / file} {(tmp_path / first)} {name}",
        "interpreter",
    ]
    assert done.stdout.splitlines() == expected, done.stderr
    assert "ValueError: a fault of the program" in done.stderr
    assert "tridal: 2 of softmax by interpreter: whole_row" in done.stderr


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder. `main` changes attributes of sys, which are restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Returns the exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(SystemExit) as raised:
        run.main()
    return raised.value.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((arguments, run.USAGE) for arguments in ((), ("-m",), ("--fast", "train.py"), ("-c", "pass"))),
        (("train.py",), "tridal.run: there is no file 'train.py' in "),
        *((("-m", name), f"tridal.run: there is no module {name!r} in ") for name in ("no_such", "no_such.train", "")),
    ],
)
def test_wrong_usage_prints_the_usage_or_what_is_missing(
    arguments: tuple[str, ...],
    message: str,
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith(message)) == ("", True), err


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
    done = python("-m", "tridal.run", "train.py", cwd=tmp_path, code=1, **variables)
    assert done.stderr == f"tridal.run: environment {variable}: expected 1 or 0, found {value!r}\n"


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
    variables = {"TRIDAL_KERNELIZE": "1", "TRIDAL_LOG_CALLS": "1", "HF_HUB_OFFLINE": "1"}
    done = python("-m", "tridal.run", "train.py", cwd=tmp_path, TRIDAL_DEVICE="interpreter", **variables)
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

    library: Any = SimpleNamespace(PreTrainedModel=PreTrainedModel)
    monkeypatch.setitem(sys.modules, environment.MODULE, library)
    monkeypatch.setenv(environment.VARIABLE, "1")
    finders = list(sys.meta_path)
    environment.start_from_environment()
    assert sys.meta_path == finders
    with tridal.use(device="interpreter"), tridal.record_calls() as calls:
        PreTrainedModel().norm(torch.randn(2, 4))
    assert "layer_norm" in {call.op for call in calls}
