"""Seeds each fault once in a page of its own. The checks must find it, and no other fault."""

from __future__ import annotations

import struct
import tempfile
import zlib
from pathlib import Path

from playwright.sync_api import Browser

from site_checks.checker import Checker, pages_of, served

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,"><style>
body { margin: 0; font: 16px/1.5 sans-serif; background: white; color: black }
article { max-width: 46rem; margin: auto; padding: 1rem }
pre, div.table { overflow-x: auto } img { max-width: 100% }
</style></head><body><article><h1 id="top">Page</h1>
BODY
</article></body></html>
"""
ALT = 'alt="a picture with one line of text"'
CLEAN = f"""<a href="#top">An anchor</a> <a href="clean.html#top">a page</a> <a href="https://example.com">a site</a>
<pre>{"x" * 60}</pre> <img src="readable.svg" {ALT}> <img src="sharp.png" {ALT}>"""
SEEDS = {
    "link": ('<a href="file:line">file:line</a>', "a link to neither a page nor a site", "file:///line"),
    "page": ('<a href="absent.html">a page</a>', "no such page", "absent.html"),
    "anchor": ('<a href="clean.html#absent">an anchor</a>', "no such anchor", "clean.html#absent"),
    "code": (f"<pre>{'x' * 120}</pre>", "does not fit into its box at 1280 px", "PRE: xxx"),
    "table": (f'<div class="table"><table><tr><td>{"x" * 120}</table></div>', "does not fit into its box", "DIV: "),
    "hidden": (f'<div style="overflow: hidden">{"x" * 120}</div>', "does not fit into its box", "DIV: "),
    "wide": ('<div style="width: 800px">wide</div>', "wider than the text column", "DIV: "),
    "sideways": ('<div style="position: absolute; left: 2000px">far</div>', "the page scrolls sideways", "px"),
    "small": ('<p style="font-size: 11px">small</p>', "text of 11.0 px", "small"),
    "contrast": ('<p style="color: #aaa">pale</p>', "contrast 2.3", "pale"),
    "text": (f'<img src="tiny.svg" {ALT}>', "a picture at 1280 px", "tiny.svg has text of 10.0 px: tiny"),
    "phone": (f'<img src="broad.svg" {ALT}>', "a picture at 390 px", "broad.svg has text of 6.6 px: broad"),
    "cut": (f'<img src="cut.svg" {ALT}>', "a picture", "cut.svg cuts its text"),
    "scale": (f'<img src="large.png" {ALT}>', "a picture", "large.png is displayed at 37% of its size"),
    "alt": ('<img src="readable.svg" alt="a plot">', "a picture", 'readable.svg has the description "a plot"'),
    "broken": (f'<img src="absent.png" {ALT}>', "a picture", "absent.png cannot be loaded"),
    "script": ("<script>absent()</script>", "script error", "absent"),
    "request": ('<script>fetch("http://127.0.0.1:9/").catch(() => 0)</script>', "loads", "http://127.0.0.1:9/"),
}
"""The content of a page, and the beginning and a part of the message about its fault, by the page's name."""
CONSEQUENCES = ("missing", "console", "wider than the text column", "the page scrolls sideways")
"""Messages about further faults that a seed can cause."""


def missed(browser: Browser) -> list[str]:
    """Checks the pages with seeded faults. Returns a line for each fault that is not found, or found without a seed."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address:
        write_site(Path(folder))
        checker = Checker(browser, address)
        for name in pages_of(Path(folder)):
            checker.check_page(name)
        checker.check_links()
    found = [(page, fault) for page, _, fault in (line.partition(".html: ") for line in checker.faults)]
    lines = [
        f"{name}: not found: {kind}: {detail}"
        for name, (_, kind, detail) in SEEDS.items()
        if not any(page == name and fault.startswith(kind) and detail in fault for page, fault in found)
    ]
    for page, fault in found:
        if page not in SEEDS or not fault.startswith((SEEDS[page][1].partition(" at ")[0], *CONSEQUENCES)):
            lines.append(f"{page}: found without a seed: {fault}")
    return lines


def write_site(folder: Path) -> None:
    """Writes a page without faults, a page for each fault, and their pictures."""
    for name, body in {"clean": CLEAN, **{name: body for name, (body, *_) in SEEDS.items()}}.items():
        (folder / f"{name}.html").write_text(PAGE.replace("BODY", body))
    for name, width, size, x in (
        ("readable", 350, 14, 10),
        ("tiny", 350, 10, 10),
        ("broad", 700, 13, 10),
        ("cut", 350, 14, 330),
    ):
        text = f'<text x="{x}" y="30" font-size="{size}">{name} text of a picture</text>'
        (folder / f"{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} 50">{text}</svg>'
        )
    for name, width in (("sharp", 350), ("large", 2000)):
        (folder / f"{name}.png").write_bytes(png(width, 20))


def png(width: int, height: int) -> bytes:
    """Returns a grey picture."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress((b"\0" + b"\x80" * width) * height)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
