"""Lines of a script that tell a library's trainer what to do: while that trains, the script itself stands at one line, whatever is wrong."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable

from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.recording.own_source import own_files
from snugfit.doctor.observe.recording.script_frames import shown
from snugfit.doctor.observe.source.script_syntax import last_assignment, syntax_of

_RUNS = re.compile(r"\.(fit|train|evaluate|validate|test|predict|run)\(")


def library_runs(lines: Iterable[str]) -> list[str]:
    """Return those of the lines, as file:line, that start a library's whole training or evaluation, or set it up."""
    return sorted(each for each in set(lines) if _RUNS.search(text := _text_of(each)) or _is_setting(text))


def note_library_runs(log: Log) -> None:
    """Note at which lines a library's trainer ran: optimizers and schedules are made in it, or by its settings."""
    made = [each.at for each in log.optimizers] + [each.at for each in log.schedulers]
    seen = [each.at for each in log.events] + [each.at for each in log.overlaps]
    log.library_runs = library_runs([*made, *seen])


def line_of_way() -> str:
    """Return file:line where the script says which way a score is better; "" where it does not."""
    for file in own_files():
        line = line_of_keyword(syntax_of(file), ("greater_is_better", "metric_for_best_model", "mode"))
        if line:
            return f"{shown(file)}:{line}"
    return ""


def _text_of(at: str) -> str:
    file, _, number = at.rpartition(":")
    return linecache.getline(file, int(number)) if number.isdigit() else ""


def _is_setting(text: str) -> bool:
    return bool(re.search(r"\w*(Arguments|Config)\(", text))


def line_of_keyword(tree: ast.Module, names: Iterable[str]) -> int:
    r"""Return the line of an argument of one of these names, the first that a call has; where it is a name, of what that was made; 0 without.

    >>> text = "held = part(rows)\ntrainer = Trainer(model,\n    eval_dataset=held)"
    >>> line_of_keyword(ast.parse(text), ["eval_dataset"]), line_of_keyword(ast.parse(text), ["data"])
    (1, 0)
    """
    for name in names:
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            for keyword in call.keywords:
                if keyword.arg == name:
                    value = keyword.value
                    made = _made_at(tree, value.id, keyword.lineno) if isinstance(value, ast.Name) else 0
                    return made or keyword.value.lineno
    return 0


def _made_at(tree: ast.Module, name: str, before: int) -> int:
    """Return the last line up to this one that sets a name; 0 without."""
    made = last_assignment(tree, name, before + 1)
    return 0 if made is None else made.lineno
