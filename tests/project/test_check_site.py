"""The checks of the documentation site: they find each seeded fault, and report a seed that they do not find."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright", reason="the extra docs is not installed")
from playwright.sync_api import Error, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def self_test() -> Any:
    from site_checks import self_test

    return self_test


def test_the_checks_find_each_seeded_fault_and_no_other(browser: Any, self_test: Any) -> None:
    assert self_test.missed(browser) == []


def test_the_self_test_reports_a_fault_that_is_not_found(
    browser: Any, self_test: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "SEEDS", {"small": ("<p>large</p>", "text of 11.0 px", "small")})
    assert self_test.missed(browser) == ["small: not found: text of 11.0 px: small"]


def test_the_self_test_reports_a_fault_without_a_seed(
    browser: Any, self_test: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = '<p style="font-size: 11px">small</p><a href="#absent">an anchor</a>'
    monkeypatch.setattr(self_test, "SEEDS", {"small": (body, "text of 11.0 px", "small")})
    (line,) = self_test.missed(browser)
    assert line.startswith("small: found without a seed: no such anchor: ")
    assert line.endswith("small.html#absent")
