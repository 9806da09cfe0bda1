"""Checks the documentation site in a headless browser: `make check-docs`.

Every page is shown at 390 and 1280 pixels, in light and dark mode. The checks:

- Links are to pages and anchors that exist, or to other sites, which are not opened. No request leaves the site.
- No script fails. The search finds a function. The theme can be switched. A button copies commands without prompts.
- A logo, the navigation and the contents of a page are beside the text at 1280 pixels.
- The page never scrolls sideways. At 1280 pixels, tables and pictures fit into their boxes. Long lines of code scroll.
- Text has at least 12 pixels and enough contrast. Text in SVG pictures has at least 11 pixels at 1280, and 7 at 390,
  and is not cut. Other pictures are displayed at half of their size or more.
- Pictures exist, and their descriptions have at least four words.

Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from site_checks.checker import Checker, pages_of, served


def main() -> None:
    """Checks all pages of a built site, and prints each fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("site", type=Path, help="the folder that `make docs` writes")
    parser.add_argument("--browser", help="path of Chromium (default: the one that `playwright install` has installed)")
    parser.add_argument("--screenshots", type=Path, help="also write each page in each view as a picture to a folder")
    options = parser.parse_args()
    pages = pages_of(options.site)
    if "index.html" not in pages:
        parser.error(f"{options.site} has no index.html: run make docs")
    with served(options.site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        checker = Checker(browser, address)
        for name in pages:
            checker.check_page(name, options.screenshots)
        checker.check_links()
        checker.check_search("softmax", "tridal.html")
        checker.check_theme_switch()
        checker.check_sidebars()
        checker.check_copy_button("getting-started.html")
        browser.close()
    for fault in checker.faults:
        print(fault)
    print(f"{len(pages)} pages, {len(checker.links)} links, {len(checker.faults)} faults")
    sys.exit(bool(checker.faults))


if __name__ == "__main__":
    main()
