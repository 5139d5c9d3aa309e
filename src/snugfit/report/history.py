"""The history of a run as a table: a row for each update, with what was scored at it."""

from __future__ import annotations

from typing import Any

from snugfit.report.story import Story, mapping

VALIDATION = "validation_"
"""Before the names of what was scored."""


def history_rows(story: Story) -> list[dict[str, Any]]:
    """Return `update`, `epoch` and the update's own numbers, and, where it was scored, those of the validation and whether they were the best."""
    rows: dict[Any, dict[str, Any]] = {}
    for event in (*story.updates, *story.evaluations):
        update = event.get("update")
        row = rows.setdefault(update, {"update": update, "epoch": event.get("epoch")})
        if event["event"] == "evaluation":
            row |= {f"{VALIDATION}{name}": value for name, value in mapping(event.get("metrics")).items()}
            row["best"] = bool(event.get("best"))
        else:
            row |= mapping(event.get("metrics"))
    return [rows[update] for update in sorted(rows, key=lambda update: update or 0)]
