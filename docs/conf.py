"""Sphinx settings. The site needs nothing from elsewhere: no fonts, scripts or images of other hosts."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

_project = tomllib.loads(Path(__file__).parent.with_name("pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]

project = "Snugfit"
author = "the Snugfit authors"
release = version = _project["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of torch and of ours that have no page
default_role = "code"  # docstrings write `name` as Markdown does
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
smartquotes = False  # `--json` is not a dash

html_theme = "furo"
html_title = f"Snugfit {version}"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """Bring the pages of what composes and of the commands up to date before the pages are read."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts import commands, matrix

    app.connect("builder-inited", lambda _: matrix.write_page())
    app.connect("builder-inited", lambda _: commands.write_page())
