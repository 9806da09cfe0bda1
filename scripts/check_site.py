"""Checks the documentation site in a headless browser: `make check-docs`.

For every page: links, anchors and pictures exist, no request leaves the site, there is no script error, nothing is
wider than a phone, and all text has enough contrast in light and dark mode. The search must find a function. Exits
with 1 if a check fails. Links to other sites are not followed.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urldefrag

from playwright.sync_api import Page, sync_playwright

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
MIN_CONTRAST = 4.5  # of text and background, as level AA of the Web Content Accessibility Guidelines

MEASURE = """MIN_CONTRAST => {
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const blend = colors => {  // the luminance of colours that are painted over each other
    const key = colors.join();
    if (!known.has(key)) {
      for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
      known.set(key, luminance([...context.getImageData(0, 0, 1, 1).data].slice(0, 3)));
    }
    return known.get(key);
  };
  const backgrounds = element => element
    ? [...backgrounds(element.parentElement), getComputedStyle(element).backgroundColor] : ['white'];
  const visible = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const low = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest('svg, script, style, noscript')) continue;
    if (!visible(element)) continue;
    const behind = backgrounds(element), style = getComputedStyle(element);
    const [text, page] = [blend([...behind, style.color]), blend(behind)];
    const contrast = (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
    const name = `${element.tagName}.${element.className}`;
    if (contrast < MIN_CONTRAST) low.set(name, [contrast, texts.currentNode.data.trim().slice(0, 40)]);
  }
  const scrolls = element => element.tagName !== 'ARTICLE'
    && (['auto', 'scroll'].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  const wide = [...document.querySelectorAll('article *')].filter(element =>
    element.getBoundingClientRect().right > innerWidth && visible(element) && !scrolls(element.parentElement));
  return {
    wide: wide.map(element => element.outerHTML.slice(0, 60)).slice(0, 3),
    low: [...low].map(([name, [contrast, text]]) => [contrast, name, text]),
    links: [...document.querySelectorAll('a[href]')].map(a => a.href),
    ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    broken: [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
  };
}"""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serves a folder on a free port. Yields the address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Checker:
    """Collects the faults of the pages that a browser page shows."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.faults: dict[str, None] = {}
        self.links: dict[str, str] = {}
        """The first page that contains each link."""
        self.anchors: dict[str, set[str]] = {}
        """The anchors of each page."""
        self.current = ""
        page.on(
            "request", lambda request: self.expect(request.url.startswith((address, "data:")), request.url, "loads")
        )
        page.on(
            "response", lambda response: self.expect(response.ok or response.status == 304, response.url, "missing")
        )
        page.on("pageerror", lambda error: self.expect(False, str(error), "script error"))
        page.on("console", lambda message: self.expect(message.type != "error", message.text, "console"))

    def expect(self, condition: object, detail: object, fault: str) -> None:
        """Records a fault of the current page if the condition is false."""
        if not condition:
            self.faults[f"{self.current}: {fault}: {detail}"] = None

    def check_page(self, name: str) -> None:
        """Loads a page, and measures it at two widths in light and dark mode."""
        self.current = name
        for viewport in (PHONE, DESKTOP):
            self.page.set_viewport_size(viewport)
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme)
                if (viewport, scheme) == (PHONE, "light"):
                    self.page.goto(self.address + name, wait_until="load")
                found = self.page.evaluate(MEASURE, MIN_CONTRAST)
                where = f"{viewport['width']} px, {scheme}"
                self.expect(not found["wide"], found["wide"], f"too wide at {where}")
                self.expect(not found["broken"], found["broken"], "broken pictures")
                for contrast, element, text in found["low"]:
                    self.expect(False, f"{element} {text!r}", f"contrast {contrast:.1f} at {where}")
        self.anchors[name] = set(found["ids"])
        for link in found["links"]:
            self.links.setdefault(link, name)

    def check_links(self) -> None:
        """Checks that each link to the site is to a page or file, and that its anchor exists."""
        for link, source in self.links.items():
            if link.startswith(self.address):
                self.current = source
                url, anchor = urldefrag(link.removeprefix(self.address))
                target = unquote(url.partition("?")[0]) or "index.html"
                if target in self.anchors:
                    self.expect(not anchor or unquote(anchor) in self.anchors[target], link, "no such anchor")
                else:
                    self.expect(self.page.request.head(self.address + target).ok, link, "no such page")

    def check_search(self, words: str, result: str) -> None:
        """Searches for words. One of the results must be the page `result`."""
        self.current = "search"
        self.page.goto(f"{self.address}search.html?q={words}")
        found = self.page.locator(f"#search-results li a[href*='{result}']").first
        found.wait_for(timeout=10_000)

    def check_theme_switch(self) -> None:
        """Presses the button that switches the theme. It must change the background in each scheme."""
        self.current = "index.html"
        self.page.emulate_media(color_scheme="light")
        self.page.goto(self.address)
        backgrounds = set()
        for _ in range(3):  # automatic, light, dark
            self.page.locator(".theme-toggle:visible").first.click()
            backgrounds.add(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        self.expect(len(backgrounds) == 2, backgrounds, "the theme button gives the backgrounds")


def main() -> None:
    """Checks all pages of a built site, and prints each fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("site", type=Path, help="the folder that `make docs` writes")
    parser.add_argument("--browser", help="path of Chromium (default: the one that `playwright install` has installed)")
    parser.add_argument(
        "--screenshots", type=Path, help="also write a screenshot of each page in each mode to a folder"
    )
    options = parser.parse_args()
    pages = sorted(page.relative_to(options.site).as_posix() for page in options.site.rglob("*.html"))
    if "index.html" not in pages:
        parser.error(f"{options.site} has no index.html: run make docs")
    with served(options.site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        checker = Checker(browser.new_page(), address)
        for name in pages:
            checker.check_page(name)
            if options.screenshots:
                take_screenshots(checker.page, options.screenshots / name.replace("/", "-"))
        checker.check_links()
        checker.check_search("softmax", "tridal.html")
        checker.check_theme_switch()
        browser.close()
    for fault in checker.faults:
        print(fault)
    print(f"{len(pages)} pages, {len(checker.links)} links, {len(checker.faults)} faults")
    sys.exit(bool(checker.faults))


def take_screenshots(page: Page, path: Path) -> None:
    """Writes the top of a page as a picture at each width in each mode."""
    for viewport in (PHONE, DESKTOP):
        page.set_viewport_size(viewport)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=path.with_suffix(f".{viewport['width']}-{scheme}.png"))


if __name__ == "__main__":
    main()
