"""Tests scripts/make_figures.py: the pictures and pages in docs/ follow from the stored results."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

matplotlib = pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "make_figures.py"))


@pytest.fixture(scope="module")
def files(script: dict[str, Any]) -> dict[Path, str]:
    made: dict[Path, str] = script["make_files"](script["Results"]())
    return made


def test_pages_and_pictures_are_those_of_the_stored_results(files: dict[Path, str]) -> None:
    """Other versions of matplotlib write other paths, so then only the texts of pictures are compared."""
    for file, text in files.items():
        name, stored = str(file.relative_to(ROOT)), file.read_text()
        if file.suffix == ".svg" and f"Matplotlib v{matplotlib.__version__}," not in stored:
            text, stored = ("\n".join(re.findall(r"<text.*?>(.*?)</text>", one)) for one in (text, stored))
        assert text == stored, f"{name} differs: run `python scripts/make_figures.py`"
    assert {file for pattern in ("*.svg", "*.png") for file in BENCHMARKS.rglob(pattern)} <= files.keys()


def test_every_picture_has_a_dark_version_and_a_description(files: dict[Path, str]) -> None:
    names = {file.with_suffix("") for file in files if file.suffix == ".svg"}
    light = {name for name in names if not name.name.endswith("-dark")}
    assert {name.with_name(f"{name.name}-dark") for name in light} == names - light
    pages = "\n".join(text for file, text in files.items() if file.suffix == ".md")
    for name in light:
        described = re.findall(rf"!\[([^\]]*)\]\((?:[\w/]*/)?{name.name}\.svg\)", pages)
        assert described, f"no page shows {name}"
        assert all("tridal" in text and re.search(r"\d\.\d", text) for text in described)


def test_descriptions_of_a_page_follow_the_results(script: dict[str, Any], tmp_path: Path) -> None:
    text = '![old](plots/a.svg) ![kept](b.svg) [link](plots/a.svg) <img alt="old" src="plots/a.svg">'
    describe = script["pictures"].describe_images
    changed = describe(tmp_path / "page.md", text, {tmp_path / "plots" / "a.svg": "tridal 1.00"})
    assert changed == (
        '![tridal 1.00](plots/a.svg) ![kept](b.svg) [link](plots/a.svg) <img alt="tridal 1.00" src="plots/a.svg">'
    )


def test_check_finds_a_page_with_another_figure(
    script: dict[str, Any],
    files: dict[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "old.png"
    main = script["main"]
    made = {page: files[ROOT / "docs" / "benchmarks" / "softmax.md"]}
    changes = {"ROOT": tmp_path, "BENCHMARKS": tmp_path, "Results": lambda: None, "make_files": lambda _: made}
    for name, value in changes.items():
        monkeypatch.setitem(main.__globals__, name, value)
    page.write_text(made[page].replace("of 188 workloads", "of 189 workloads"))
    picture.touch()

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["make_figures.py", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().out

    assert run("--check") == (1, "deletes old.png\nwrites page.md\n")
    assert picture.exists()
    assert run() == (0, "deletes old.png\nwrites page.md\n")
    assert page.read_text() == made[page]
    assert run("--check") == (0, "")


def test_an_unknown_block_names_the_known_ones(script: dict[str, Any]) -> None:
    block = "<!-- figures: sharse softmax -->\n<!-- end of figures -->\n"
    with pytest.raises(
        SystemExit, match=r"page\.md: no figures are called 'sharse'; known: overview, faster_elsewhere"
    ):
        script["with_blocks"](Path("page.md"), block, None)


def test_links_of_a_block_are_relative_to_its_page(script: dict[str, Any]) -> None:
    block = "<!-- figures: libraries -->\n<!-- end of figures -->\n"
    results = script["Results"]()
    assert "(docs/benchmarks/softmax.md#quack)" in script["with_blocks"](ROOT / "README.md", block, results)
    assert "(benchmarks/softmax.md#quack)" in script["with_blocks"](ROOT / "docs" / "index.md", block, results)


def test_picture_of_models_shows_values_and_reasons(script: dict[str, Any]) -> None:
    result, plots = script["pictures"].Result, script["pictures"].model_plots
    results = [
        result("gpt2", "training", "unchanged", 100.0, 1.0, peak_gib=10.0),
        result("gpt2", "training", "kernelize", 150.0, 1.0, peak_gib=5.5),
        result("gpt2", "training", "override_torch", 100.0, 1.0, peak_gib=10.0),
        result("gpt2", "training", "liger", problem="NotImplementedError: no patch for gpt2"),
        result("gpt2", "decoding", "unchanged", problem="RuntimeError: failed"),
        result("gpt2", "decoding", "kernelize", 10.0, 1.0, peak_gib=1.0),
    ]
    with script["pictures"].plot_style.style():
        (picture,) = plots.make_pictures(results, "a GPU", {"torch": "2.11.0+cu130"})
    speed, memory = picture.figure.axes
    assert [label.get_text() for label in speed.get_yticklabels()] == ["unchanged", "tridal", "Liger-Kernel"]
    assert [text.get_text().strip() for text in speed.texts] == ["1.00", "1.50", "no patch for gpt2", "GPT-2"]
    assert [text.get_text() for text in memory.texts] == ["10.0", "5.5"]
    assert speed.get_ylim() == memory.get_ylim() == (3.5, -0.5), "a reason in the last row is inside the panel"
    assert "PyTorch 2.11.0." in picture.figure.texts[-1].get_text()
    assert picture.description.endswith("GPT-2: unchanged 1.00 and 10.0 GiB; tridal 1.50 and 5.5 GiB.")


def test_site_shows_the_dark_version_of_a_picture_on_a_dark_page(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    themed_images = runpy.run_path(str(ROOT / "docs" / "conf.py"))["themed_images"]
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "a-dark.svg").touch()
    text = "![a text](plots/a.svg) ![other](plots/b.svg) [link](plots/a.svg)"
    assert themed_images(text, tmp_path) == (
        "![a text](plots/a.svg){.plot .only-light}![a text](plots/a-dark.svg){.plot .only-dark} "
        "![other](plots/b.svg) [link](plots/a.svg)"
    )
