"""Sphinx configuration of the site. `make docs` reads it; docs/design/site.md says why it is so."""

from __future__ import annotations

import inspect
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from site_text import as_rst, mark_outside_links, navigation, write_text_files  # noqa: E402  (beside this file, no package)

import ramet  # noqa: E402

project = "ramet"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
exclude_patterns = ["site"]
myst_heading_anchors = 6  # the anchors that forges give to headings
templates_path = ["templates"]
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
add_module_names = False
toc_object_entries = False  # a page with hundreds of names would fill its column
DOCSTRINGS = "reference/docstrings"

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "ramet"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False  # each page has its Markdown beside it
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False


def docstring_directives() -> str:
    """Return what makes autodoc show each class and function that `ramet` exports, below a heading of its own."""
    sections = []
    for name in ramet.__all__:
        value = getattr(ramet, name)
        if inspect.isclass(value):
            directive = f".. autoclass:: ramet.{name}\n   :members:"
        elif inspect.isroutine(value):
            directive = f".. autofunction:: ramet.{name}"
        else:
            continue
        sections.append(f"## {name}\n\n```{{eval-rst}}\n{directive}\n```\n")
    return "\n".join(sections)


def change_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Add the navigation to the index and the docstrings to their page, and name files outside `docs/`."""
    text = mark_outside_links(content[0], f"{docname}.md")
    if docname == root_doc:
        text = navigation(text)
    elif docname == DOCSTRINGS:
        text = f"{text}\n{docstring_directives()}"
    content[0] = text


def change_docstring(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText."""
    lines[:] = as_rst("\n".join(lines)).splitlines()


def finish_site(app: Sphinx, exception: Exception | None) -> None:
    """Write the texts beside the pages, and the first page under the name that servers look for."""
    if exception is None and app.builder.name == "html":
        write_text_files(Path(app.srcdir), Path(app.outdir))
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the three steps to the build."""
    app.connect("autodoc-process-docstring", change_docstring)
    app.connect("source-read", change_page)
    app.connect("build-finished", finish_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
