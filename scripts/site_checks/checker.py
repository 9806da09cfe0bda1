"""Finds the faults of pages in a headless browser: links, widths, sizes of text, contrast, pictures, search, theme."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urldefrag

from playwright.sync_api import Browser

VIEWPORTS = {"phone": {"width": 390, "height": 844}, "desktop": {"width": 1280, "height": 900}}
LIMITS: dict[str, dict[str, float]] = {
    name: {
        "contrast": 4.5,  # of text and background, as level AA of the Web Content Accessibility Guidelines
        "text": 12,  # pixels, of the text of a page
        "picture_text": picture_text,  # pixels, of text in an SVG picture as it is displayed
        "scale": 0.5,  # of a picture whose text cannot be measured, relative to its own size
        "words": 4,  # of the description of a picture
        "outside": 8,  # pixels that an element may exceed the text column, or a text its picture
        "scroll": scroll,  # whether a table or a picture may scroll in its box, as code always may
    }
    for name, picture_text, scroll in (("phone", 7, True), ("desktop", 11, False))
}
"""What is readable. A reader can enlarge a picture on a phone, but should not need to do so on a desktop."""
SCHEMES = ("http://", "https://", "mailto:")
MEASURE = Path(__file__).with_name("measure.js").read_text()


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


def pages_of(site: Path) -> list[str]:
    """Returns the paths of the pages of a site, relative to its folder."""
    return sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))


class Checker:
    """Collects the faults of the pages that a browser shows. `address` is that of the site."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.page, self.address = browser.new_page(permissions=["clipboard-read", "clipboard-write"]), address
        self.faults: dict[str, None] = {}
        self.links: dict[str, str] = {}
        """The first page that contains each link."""
        self.anchors: dict[str, set[str]] = {}
        """The anchors of each page."""
        self.current = ""
        self.page.on(
            "request", lambda request: self.expect(request.url.startswith((address, "data:")), request.url, "loads")
        )
        self.page.on(
            "response", lambda response: self.expect(response.ok or response.status == 304, response.url, "missing")
        )
        self.page.on("pageerror", lambda error: self.expect(False, str(error), "script error"))
        self.page.on("console", lambda message: self.expect(message.type != "error", message.text, "console"))

    def expect(self, condition: object, detail: object, fault: str) -> None:
        """Records a fault of the current page if the condition is false."""
        if not condition:
            self.faults[f"{self.current}: {fault}: {detail}"] = None

    def views(self) -> Iterator[tuple[str, str]]:
        """Shows the current page on a phone and on a desktop, each in light and dark mode. Yields both names."""
        for viewport, size in VIEWPORTS.items():
            self.page.set_viewport_size({"width": size["width"], "height": size["height"]})
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                yield viewport, scheme

    def check_page(self, name: str, screenshots: Path | None = None) -> None:
        """Loads a page, and measures it in each view. Also writes a picture of its top to a folder if one is given."""
        self.current = name
        self.page.goto(self.address + name, wait_until="load")
        for viewport, scheme in self.views():
            found = self.page.evaluate(MEASURE, LIMITS[viewport])
            where = f"at {VIEWPORTS[viewport]['width']} px"
            self.expect(found["scroll"] <= 0, f"by {found['scroll']} px", f"the page scrolls sideways {where}")
            self.expect(not found["wide"], found["wide"], f"wider than the text column {where}")
            for element in found["cut"]:
                self.expect(False, element, f"does not fit into its box {where}")
            for contrast, element, text in found["low"]:
                self.expect(False, f"{element} {text!r}", f"contrast {contrast:.1f} {where}, {scheme}")
            for size, element, text in found["small"]:
                self.expect(False, f"{element} {text!r}", f"text of {size:.1f} px {where}")
            for picture in found["pictures"]:
                self.expect(False, picture, f"a picture {where}")
            if screenshots:
                file = f"{name.replace('/', '-').removesuffix('.html')}.{viewport}-{scheme}.png"
                self.page.screenshot(path=screenshots / file, full_page=True)
        self.anchors[name] = set(found["ids"])
        for link in found["links"]:
            self.links.setdefault(link, name)

    def check_links(self) -> None:
        """Checks that each link is to another site, or to a page or file of this site, and that its anchor exists."""
        for link, source in self.links.items():
            self.current = source
            if not link.startswith(self.address):
                self.expect(link.startswith(SCHEMES), link, "a link to neither a page nor a site")
                continue
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

    def check_sidebars(self) -> None:
        """Checks that a desktop shows one logo, the navigation and the contents of the page beside the text."""
        self.current = "index.html"
        self.page.set_viewport_size({"width": VIEWPORTS["desktop"]["width"], "height": VIEWPORTS["desktop"]["height"]})
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            self.page.goto(self.address)
            logos = self.page.locator(".sidebar-logo:visible").evaluate_all(
                "all => all.map(image => image.naturalWidth)"
            )
            self.expect(len(logos) == 1 and logos[0], logos, f"widths of the logos, {scheme}")
        for name in (".sidebar-tree", ".toc-tree"):
            box = self.page.locator(name).first.bounding_box()
            inside = box and box["x"] >= 0 and box["x"] + box["width"] <= VIEWPORTS["desktop"]["width"]
            self.expect(inside, box, f"{name} is not beside the text")

    def check_copy_button(self, name: str) -> None:
        """Presses the button of the first commands of a page. It must copy them without their prompts."""
        self.current = name
        self.page.goto(self.address + name)
        block = self.page.locator(".highlight-console .highlight").first
        block.hover()
        block.locator("button.copybtn").click()
        copied, shown = self.page.evaluate("navigator.clipboard.readText()"), block.locator("pre").inner_text()
        commands = [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]
        self.expect(commands and copied.splitlines() == commands, repr(copied), "the copy button copies")
