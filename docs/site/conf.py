"""Sphinx configuration of the site. `make docs` reads it; docs/design/site.md says why it is so."""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from site_text import as_rst, mark_outside_links, navigation, write_text_files  # noqa: E402  (beside this file, no package)

import ramet  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

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
#: What the public calls return, besides the names that `ramet` exports.
RETURNED = ("ramet.spawn.handle.Handle", "ramet.host.sandbox.handle.AgentHandle")
#: Members of these bases, and of a class with other bases, are not ours to explain.
KNOWN_BASES = ("Generic", "Struct", "Enum", "StrEnum", "ReprEnum", "str", "object")
FOREIGN_MEMBERS = "model_config, model_post_init"  # of pydantic, in each of its classes

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "ramet"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("casts.js", {"loading_method": "defer"})]
html_copy_source = False  # each page has its Markdown beside it
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False


def docstring_directives() -> str:
    """Return what makes autodoc show each class and function that `ramet` exports, below a heading of its own."""
    sections = []
    for path in [*(f"ramet.{name}" for name in ramet.__all__), *RETURNED]:
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value):
            options = [":members:", ":undoc-members:", f":exclude-members: {FOREIGN_MEMBERS}"]
            if all(base.__module__.startswith("ramet.") or base.__name__ in KNOWN_BASES for base in value.__mro__):
                options.append(f":inherited-members: {', '.join(KNOWN_BASES)}")
            directive = "\n   ".join([f".. autoclass:: {path}", *options])
        elif inspect.isroutine(value):
            directive = f".. autofunction:: {path}"
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
