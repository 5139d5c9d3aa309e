"""A self-contained page about a run, made from the run's folder alone: no scripts, no network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError
from snugfit.report import sections
from snugfit.report.charts import charts, frame
from snugfit.report.detail_sections import DETAILS_STYLE, detail_sections, read_details
from snugfit.report.law_table import LAWS_STYLE
from snugfit.report.stack import STACK_STYLE
from snugfit.report.story import Story, mapping, read_story
from snugfit.report.style import STYLE
from snugfit.report.svg import escape
from snugfit.results.tool_results import results
from snugfit.system.disk_files import whole_file
from snugfit.system.json_text import parse_json

REPORT_NAME = "report.html"
TIMELINE_NAME = "timeline.json"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run's folder, replacing an older one at once, and return its path.

    Works on a run that is finished, stopped, failed or still going.

    Raises:
        RunFolderError: the folder has no events, or the page cannot be written there.
    """
    run_dir = Path(run_dir)
    text = render(read_story(run_dir), run_dir)
    return replace_page(run_dir / REPORT_NAME, text)


def replace_page(path: Path, text: str) -> Path:
    """Write a page, replacing an older one at once, and return its path.

    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        with whole_file(path) as draft:
            # a message may hold what is no character, as of a path that is not UTF-8
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def make_folder_of(page: Path) -> None:
    """Make the folder of a page, with those that are missing on its way.

    Raises:
        RunFolderError: it cannot be made.
    """
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(page, error) from error


def _unwritable(page: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        page, f"the page cannot be written: {error.strerror}", "Name a file that can be written."
    )


def render(story: Story, run_dir: Path) -> str:
    """Return the page as text."""
    drawn, plan = charts(story), _plan(story, run_dir)
    timeline, evaluated = sections.read_timeline(run_dir / TIMELINE_NAME), read_details(run_dir)
    body = [
        sections.headline(story, run_dir),
        sections.curves(drawn, frame(story, drawn)),
        sections.evaluations(story),
        *([] if evaluated is None else detail_sections(evaluated)),
        sections.incidents(story),
        sections.data(story),
        sections.example(story),
        sections.answers(story),
        sections.planned(story),
        sections.over_an_update(timeline, plan),
        sections.certified(story),
        section_of_tools(run_dir),
        sections.setup(story, plan),
        sections.recipe(_recipe(story, run_dir)),
        sections.checkpoints(story, run_dir),
        sections.registered(story),
        sections.next_time(story),
        sections.footer(story),
    ]
    style = (LAWS_STYLE if story.certified else "") + (STACK_STYLE if timeline is not None else "")
    style += "" if evaluated is None else DETAILS_STYLE
    return document(f"{story.name} · {story.status} · Snugfit", body, style)


def render_curves(story: Story) -> str:
    """Return a page with the curves and the evaluations of a run that has no folder."""
    drawn = charts(story)
    return document(story.name, (sections.curves(drawn, frame(story, drawn)), sections.evaluations(story)))


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a whole page from its sections, of which empty ones are left out; `style` adds to the style sheet."""
    content = "\n".join(part for part in body if part)
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n"
        f"<style>{STYLE}{style}</style></head>\n"
        f"<body><main>{content}</main></body></html>\n"
    )


def _plan(story: Story, run_dir: Path) -> dict[str, Any]:
    """Return the plan file; without a readable one, the plan in the run's first event."""
    try:
        plan = parse_json((run_dir / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        plan = story.run.get("plan")
    return mapping(plan)


def _recipe(story: Story, run_dir: Path) -> str:
    """Return the recipe file; without a readable one, the recipe in the run's first event."""
    try:
        return (run_dir / "recipe.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return json.dumps(story.recipe, indent=2) if story.recipe else ""


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
