"""Configuration of the documentation site, which `make docs` builds with Sphinx from docs/*.md and the docstrings."""

from __future__ import annotations

import os
import re
from dataclasses import is_dataclass
from pathlib import Path

from docutils import nodes
from docutils.utils import urischemes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import signature, stringify_signature

import tridal

DOCS = Path(__file__).parent
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
IMAGE = re.compile(r"(?P<start>!\[[^\]]*\]\((?P<path>[^)\s]+))\.svg\)")
MODULE = re.compile(r"^\| `(tridal[\w.]*)` \|", re.MULTILINE)
"""A row of the table in api.md, which has a page of its own."""
README = re.compile(r"^# tridal\n.*?(?=^## Start)", re.MULTILINE | re.DOTALL)
"""The part of index.md instead of which the site shows README.md."""
PICTURE = re.compile(r"<picture>.*?<img alt=\"(?P<alt>[^\"]*)\" src=\"(?P<path>[^\"]*)\">\n</picture>", re.DOTALL)
COPIED = {ROOT / name: GENERATED / name.lower() for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
REPOSITORY = os.environ.get("REPOSITORY_URL", "")
"""Address of the repository, as GitHub shows it. Without it, links to files outside the site become plain text."""

project = "tridal"
copyright = "the authors of tridal"
version = release = tridal.__version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]

# GitHub's anchors, so that a link to a heading works on GitHub and on the site.
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]  # a generated page can begin with a heading of a lower level
myst_enable_extensions = ["attrs_inline"]  # classes of images

# docutils makes links of a hundred schemes, also of "file:line" in a docstring.
urischemes.schemes = {scheme: urischemes.schemes[scheme] for scheme in ("http", "https", "mailto")}

# Names in single backticks become links if they are public, and code otherwise.
default_role = "py:obj"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True

# The buttons copy the commands of a block without their prompts and without their output.
copybutton_prompt_text = r">>> |\.\.\. |\$ |\(Pdb\) "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"tridal {release}"
html_static_path = ["_static", "diagrams/logo.svg", "diagrams/logo-dark.svg"]
html_css_files = ["site.css"]
html_favicon = "diagrams/logo.svg"
html_theme_options = {"light_logo": "logo.svg", "dark_logo": "logo-dark.svg"}
html_copy_source = False
pygments_dark_style = "github-dark"  # Furo's default underlines the names of modules
html_domain_indices = False  # the API reference lists the modules


def site_links(text: str, folder: Path, page: Path) -> str:
    """Changes the relative links of a Markdown file in `folder`, so that they work in the site's page `page`."""

    def replace(link: re.Match[str]) -> str:
        target = (folder / link["path"]).resolve()
        target = COPIED.get(target, target)
        if target.is_relative_to(DOCS):
            return f"{link['image']}[{link['text']}]({os.path.relpath(target, page.parent)}{link['anchor'] or ''})"
        if not REPOSITORY:
            return link["text"]
        kind = "tree" if target.is_dir() else "blob"
        return f"[{link['text']}]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)})"

    return LINK.sub(replace, text)


def themed_images(text: str, folder: Path) -> str:
    """Adds the dark version of each image of which the folder has one, as NAME-dark.svg beside NAME.svg."""

    def replace(image: re.Match[str]) -> str:
        if not (folder / f"{image['path']}-dark.svg").exists():
            return image[0]
        start = image["start"]
        return f"{start}.svg){{.plot .only-light}}{start}-dark.svg){{.plot .only-dark}}"

    return IMAGE.sub(replace, text)


def write_generated_pages(app: Sphinx) -> None:
    """Writes a page for each module that api.md lists, and copies pages from the root of the repository."""
    GENERATED.mkdir(exist_ok=True)
    modules = MODULE.findall((DOCS / "api.md").read_text())
    pages = {f"{name}.rst": f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n" for name in modules}
    for source, page in COPIED.items():
        pages[page.name] = site_links(source.read_text(), source.parent, page)
    for name, text in pages.items():
        page = GENERATED / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
    for page in GENERATED.iterdir():
        if page.name not in pages:
            page.unlink()


def read_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Adapts the links and images of a page. Derives the navigation from lists of links."""
    page = DOCS / f"{name}.md"
    if page.is_relative_to(GENERATED):
        return
    text = site_links(page.read_text(), page.parent, page)
    if name == "index":
        shown = (ROOT / "README.md").read_text().partition("\n# ")[2].partition("## Documentation")[0]
        readme = PICTURE.sub(r"![\g<alt>](\g<path>)", f"# {shown}")  # the sidebar shows the logo
        text = README.sub(lambda _: site_links(readme, ROOT, page), text)
    text = themed_images(text, page.parent)
    if name in ("index", "benchmarks"):
        for title, section in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
            links = re.findall(r"^- \[(.*?)\]\(([^#]*?)\)", section, re.MULTILINE)  # to pages, not to sections
            if links:
                links += [("Repository", REPOSITORY)] if title == "Start" and REPOSITORY else []
                text += toctree([f"{title} <{path}>" for title, path in links], "hidden:", f"caption: {title}")
    elif name == "api":
        text = MODULE.sub(r"| [`\1`](generated/\1.rst) |", text)
        text += toctree(["generated/tridal*"], "glob:", "hidden:")
    elif page.stem == "results":  # tables of benchmarks, to which other pages link
        text = f"---\norphan: true\n---\n{text}"
    content[0] = text


def toctree(entries: list[str], *options: str) -> str:
    """Returns a directive that adds pages to the navigation."""
    return "\n".join(["", "```{toctree}", *(f":{option}" for option in options), "", *entries, "```", ""])


def read_docstring(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Converts the sections of a docstring. In an attribute's docstring, Napoleon would read "text: text" as a type."""
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, value, options).lines()


def break_long_names(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Lets long names in tables break after a "_", and in code also after a ".", so that the tables fit."""
    for text in list(doctree.findall(nodes.Text)):
        literal = isinstance(text.parent, nodes.literal)
        entry = text.parent.parent.parent if literal else text.parent.parent
        if isinstance(entry, nodes.entry) and re.search(r"[\w.]{25}" if literal else r"\w{13}", text):
            parts = re.split(r"(?<=[._])(?=\w)" if literal else r"(?<=_)(?=\w)", text)
            broken = [[nodes.Text(part), nodes.raw("", "<wbr>", format="html")] for part in parts]
            text.parent.replace(text, [node for pair in broken for node in pair][:-1])


def class_signature(app: Sphinx, what: str, name: str, value: object, *_: object) -> tuple[str, None] | None:
    """Returns the arguments of a dataclass from its `__init__`. Its `__new__` may take any. A protocol has none."""
    if is_dataclass(value):
        return stringify_signature(signature(value.__init__, bound_method=True), show_return_annotation=False), None
    return ("", None) if getattr(value, "_is_protocol", False) else None


def hide_overloads() -> None:
    """Shows the signature of a function as `help` does. Its overloads are for type checkers."""
    analyze = ModuleAnalyzer.analyze

    def without_overloads(self: ModuleAnalyzer) -> None:
        analyze(self)
        self.overloads = {}

    ModuleAnalyzer.analyze = without_overloads


def setup(app: Sphinx) -> None:
    """Connects the functions of this file to the build."""
    hide_overloads()
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", class_signature)
    app.connect("builder-inited", write_generated_pages, priority=1)
    app.connect("source-read", read_page)
    app.connect("doctree-resolved", break_long_names)
