"""The section of a run's page with the results of tools on its recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from snugfit.report.svg import escape
from snugfit.results.tool_results import results


def section_of_tools(run_dir: Path) -> str:
    """Return the newest result of each tool about a recipe of the run's name, with a link to its page; "" where there is none."""
    output, name = run_dir.parent.parent, run_dir.parent.name
    newest: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder, result in results(output, name):
        newest.setdefault(str(result.get("tool")), (folder, result))
    rows = "".join(
        f"<tr><th scope=row>{_linked(tool, folder, run_dir)}</th><td>{escape(str(result.get('summary', '')))}</td></tr>"
        for tool, (folder, result) in sorted(newest.items())
    )
    note = f"The newest of each about a recipe named {escape(name)}, whatever its settings were."
    return (
        f"<section><h2>Tools</h2><table><tbody>{rows}</tbody></table><p class=note>{note}</p></section>"
        if rows
        else ""
    )


def _linked(tool: str, folder: Path, run_dir: Path) -> str:
    words, page = escape(tool.replace("_", " ")), folder / f"{tool}.html"
    if not page.exists():
        return words
    link = Path(os.path.relpath(page, run_dir)).as_posix()
    return f'<a href="{escape(link)}">{words}</a>'
