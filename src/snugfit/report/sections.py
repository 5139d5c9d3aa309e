"""The page's sections, each a function from a run's story to HTML, empty where there is nothing to tell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snugfit.data.report import has_epochs, source_words
from snugfit.planner.answers.answer import Timeline
from snugfit.planner.answers.plan_figures import compare_line, memory_note
from snugfit.report.advice import advise
from snugfit.report.html import (
    aligned,
    breakable,
    clock,
    details,
    facts,
    figures,
    flat,
    model_name,
    shortened,
    table,
    written,
)
from snugfit.report.law_table import laws_table
from snugfit.report.series import as_number, format_number
from snugfit.report.stack import layered, place_of_peak
from snugfit.report.story import IN_PROGRESS, Incident, Story, mapping
from snugfit.report.svg import Chart, Frame, escape, figure
from snugfit.results.run_folder import QUARANTINE
from snugfit.results.verdicts import Certificate
from snugfit.system.json_text import parse_json
from snugfit.units import counted, format_bytes, format_seconds

MOST_LABELS = 24
MOST_ROWS = 200
MOST_INCIDENTS = 40
MOST_METRICS = 12
MOST_READINGS = 3  # beside the best update
OPEN_ROWS = 6  # a longer table starts folded

_PREDICTED = (
    "peak_bytes",
    "reserved_bytes",
    "host_peak_bytes",
    "budget_bytes",
    "seconds_per_update",
    "seconds_total",
)
"""Of a plan, what is told on the page of its run."""

LEGEND = {"skipped": "skipped window", "warning": "warning", "resume": "resumed"}


def headline(story: Story, run_dir: Path) -> str:
    """Return the head of the page: name, status, outcome and key figures."""
    named = {**story.recipe, "model": model_name(str(story.recipe.get("model") or ""))}
    about = " · ".join(escape(named[key]) for key in ("task", "model") if named.get(key))
    status = escape(story.status)
    return (
        f"<header><p class=about>{about}</p><h1>{escape(story.name)}</h1>"
        f'<p class=identity><span class="status {status.replace(" ", "-")}">{status.capitalize()}</span>'
        f"<code>{escape(story.id)}</code><span>started {clock(story.started)}</span></p>"
        f"{_outcome(story, run_dir)}{_key_figures(story)}</header>"
    )


def _outcome(story: Story, run_dir: Path) -> str:
    end = story.end or {}
    total = as_number(story.run.get("total_updates"))
    parts = []
    if end.get("stop_reason"):
        reason = escape(str(end["stop_reason"]).strip())
        parts.append(f'<p class="reason {escape(story.status)}">{reason}</p>')
    if story.status == IN_PROGRESS:
        last = f"Last event {clock(story.last_event)}."
        parts.append(f"<p>No end has been written: the run is going on, or was killed. {last}</p>")
    if total and story.status != "finished":
        share = min(1.0, story.last_update / total)
        parts.append(f"<p>{story.last_update:,} of {total:,.0f} updates, {share:.0%}.</p>")
        parts.append(f'<div class=progress><span style="width:{share:.1%}"></span></div>')
    if end.get("resumable"):
        command = f"snugfit resume {shlex.quote(str(run_dir))}"
        parts.append(f"<p>Go on with <code>{breakable(command)}</code></p>")
    return "".join(parts)


def _key_figures(story: Story) -> str:
    end = story.end or {}
    total = as_number(story.run.get("total_updates"))
    rows = [
        _best_figure(story),
        ("Updates", f"{story.last_update:,}", f"of {total:,.0f} planned" if total else ""),
    ]
    if words := story.run.get("window"):
        unit = " tokens" if " tokens" in words else " examples"
        sizes, _, over = str(words).partition(unit)
        rows.append(("Window", sizes, f"{unit}{over}".strip()))
    epochs = as_number(end.get("epochs"))
    if epochs is None and story.updates:
        epochs = as_number(story.updates[-1].get("epoch"))
    if epochs is not None and has_epochs(mapping(story.run.get("data"))):
        rows.append(("Epochs", format_number(round(epochs, 2)), ""))
    rows.append(("Duration", format_seconds(as_number(end.get("seconds")) or story.seconds), ""))
    speeds = sorted(story.measured("examples_per_second"))
    speed = as_number(end.get("examples_per_second")) or (speeds[len(speeds) // 2] if speeds else None)
    if speed is not None:
        rows.append(("Throughput", format_number(speed), "examples/s"))
    memory = as_number(end.get("peak_memory_bytes")) or max(story.measured("memory_bytes"), default=None)
    if memory is not None:
        rows.append(("Peak memory", format_bytes(memory), ""))
    parameters = mapping(story.run.get("parameters"))
    size, trainable = as_number(parameters.get("total")), as_number(parameters.get("trainable"))
    if size is not None:
        detail = (
            ""
            if trainable is None
            else "all trainable"
            if trainable == size
            else f"{trainable:,.0f} trainable"
        )
        rows.append(("Parameters", shortened(size), detail))
    decayed = {name: as_number(count) for name, count in mapping(story.run.get("weight_decay")).items()}
    if any(name != "0" for name in decayed):
        spared = decayed.get("0")
        values = ", ".join(name for name in decayed if name != "0")
        detail = "on all parameters" if spared is None else f"none on {spared:,.0f} parameters"
        rows.append(("Weight decay", values, detail))
    return figures(rows)


def _best_figure(story: Story) -> tuple[str, str, str]:
    if story.best is not None:
        update, metrics = story.best
        monitored = story.monitored
        value = None if monitored is None else as_number(metrics.get(monitored))
        if monitored is not None and value is not None:
            return f"Best {monitored.replace('_', ' ')}", format_number(value), f"at update {update:,}"
        readings = [f"{name.replace('_', ' ')} {written(metrics[name], name)}" for name in metrics]
        return "Best update", f"{update:,}", ", ".join(readings[:MOST_READINGS])
    losses = story.measured("loss")
    if losses:
        return "Last training loss", format_number(losses[-1]), "" if story.evaluations else "not evaluated"
    return "Best", "none", "nothing was measured"


def curves(drawn: Sequence[Chart], frame: Frame) -> str:
    """Return the section of charts over updates, with a legend of their marks."""
    if not drawn:
        return "<section><h2>Curves</h2><p>No update has been recorded yet.</p></section>"
    kinds = [kind for kind in LEGEND if any(mark.kind == kind for mark in frame.marks)]
    keys = "".join(f'<li><i class="key mark {kind}"></i>{LEGEND[kind]}</li>' for kind in kinds)
    legend = f"<ul class=legend>{keys}</ul>" if keys else ""
    body = "".join(figure(chart, frame, first=chart is drawn[0]) for chart in drawn)
    return f"<section><h2>Curves</h2>{legend}<div class=charts>{body}</div></section>"


def evaluations(story: Story) -> str:
    """Return the table of the last evaluations; "" where there are none."""
    names = list(dict.fromkeys(name for event in story.evaluations for name in mapping(event.get("metrics"))))
    names = names[:MOST_METRICS]
    shown = story.evaluations[-MOST_ROWS:]
    if not shown:
        return ""
    epochs = has_epochs(mapping(story.run.get("data")))
    columns = [
        [written(event.get("update")) for event in shown],
        *[aligned([event.get("epoch") for event in shown], decimals=2)] * epochs,
        *(
            aligned([mapping(event.get("metrics")).get(name) for event in shown], decimals=4)
            for name in names
        ),
        [str(event.get("weights", "")) for event in shown],
        ["best so far" if event.get("best") else "" for event in shown],
    ]
    shown_names = [name.replace("_", " ") for name in names]
    head = ["update", *["epoch"] * epochs, *shown_names, "weights", ""]
    body = table(head, list(zip(*columns, strict=True)), numbers=1 + epochs + len(names))
    if len(story.evaluations) == 1:  # of which there are no curves
        return f"<section><h2>The evaluation</h2>{body}</section>"
    return f"<section class=close>{details(f'All evaluations ({len(story.evaluations):,})', body)}</section>"


def incidents(story: Story) -> str:
    """Return the section of warnings and skipped windows, those of one kind together."""
    groups: dict[tuple[str, str], list[Incident]] = {}
    for incident in story.incidents:
        alike = re.sub(
            r"\d[\d.]*", "#", incident.text
        )  # a window's number or file does not make it another kind
        groups.setdefault((incident.kind, alike), []).append(incident)
    if not groups:
        return ""
    items = "".join(
        f'<li><i class="key mark {kind}"></i><div>{escape(_incident_text(group))}'
        f"<small>{escape(_occasions(group))}</small></div></li>"
        for (kind, _), group in list(groups.items())[:MOST_INCIDENTS]
    )
    rest = len(groups) - MOST_INCIDENTS
    more = f"<p class=note>{counted(rest, 'more kind')} in events.jsonl.</p>" if rest > 0 else ""
    return f"<section><h2>What happened on the way</h2><ul class=incidents>{items}</ul>{more}</section>"


def _incident_text(group: Sequence[Incident]) -> str:
    text = group[0].text
    first = "" if all(incident.text == text for incident in group) else ", the first"
    if group[0].kind == "skipped":
        return f"{counted(len(group), 'window')} skipped{first}: {text}"
    return f"Warning{first}: {text}" if group[0].kind == "warning" else text


def _occasions(group: Sequence[Incident]) -> str:
    first, last = group[0], group[-1]
    if len(group) == 1:
        window = "" if first.window is None or first.kind != "skipped" else f"window {first.window:,}, "
        elapsed = format_seconds(max(0.0, first.seconds))
        return f"{window}after update {first.update:,.0f}, {elapsed} from the start"
    times = "" if first.kind == "skipped" else f"{len(group):,} times, "
    return f"{times}from update {first.update:,.0f} to update {last.update:,.0f}"


_IN_WORDS = {
    "truncated": "texts cut",
    "max_length": "tokens at most, each",
    "tokens_total": "tokens in all",
    "tokens_max": "tokens of the longest",
    "tokens_median": "tokens, median",
    "windowed": "texts read in windows",
    "padding": "part of the tokens in micro-batches that is padding",
    "form": "rows are",
    "baseline": "without learning",
}
"""Counts of a data set as people say them."""


def data(story: Story) -> str:
    """Return the section of rows and labels; "" where nothing is known of them."""
    counts = mapping(story.run.get("data"))
    if not counts:
        return ""
    skipped = {
        str(reason): as_number(number) or 0 for reason, number in mapping(counts.get("skipped")).items()
    }
    names = {"train": "training examples", "validation": "validation examples"}
    rows = [(name, counts[key]) for key, name in names.items() if counts.get(key) is not None]
    rows.append(("skipped rows", int(sum(skipped.values()))))
    rows += [(f"– {reason}", number) for reason, number in skipped.items()]
    if skipped:
        rows.append(("– file and line of each", QUARANTINE))
    others = (*names, "skipped", "labels", "sources", "unit", "balanced", "balanced_by")
    rest = {
        _IN_WORDS.get(key, key.replace("_", " ")): value
        for key, value in counts.items()
        if key not in others and value not in (0, [], "")
    }
    sources = counts.get("sources")
    for source in map(mapping, sources if isinstance(sources, list) else ()):
        name, _, words = source_words(source).partition(": ")
        rows.append((f"source {name}", words))
    balanced = counts.get("balanced")
    for value in map(mapping, balanced if isinstance(balanced, list) else ()):
        name, _, words = source_words(value).rpartition(": ")
        rows.append((f"{counts.get('balanced_by')} {name}", words))
    body = facts([*rows, *flat(rest)])
    labels = {str(name): as_number(number) or 0 for name, number in mapping(counts.get("labels")).items()}
    return f"<section><h2>Data</h2><div class=columns><div>{body}</div>{_label_bars(labels)}</div></section>"


def example(story: Story) -> str:
    """Return one training example as the model reads it, with what is scored marked; "" where the run tells none."""
    parts = story.run.get("example")
    if not isinstance(parts, list) or not parts:
        return ""
    text = "".join(
        f"<mark>{escape(str(part))}</mark>" if scored else escape(str(part)) for part, scored in parts
    )
    note = "The first training example with its special tokens. What is marked is scored, the rest is read."
    return f"<section><h2>What the model reads</h2><pre class=example>{text}</pre><p class=note>{note}</p></section>"


MOST_ANSWERS = 8
"""Evaluations whose answers are shown: the first, the last, and some between them."""


def answers(story: Story) -> str:
    """Return what the model says to the same prompts at several evaluations; "" where the run tells none."""
    shown = [event for event in story.answers if isinstance(event.get("rows"), list)]
    if not shown:
        return ""
    step = max(1, (len(shown) - 1) / (MOST_ANSWERS - 1))
    places = sorted({min(round(number * step), len(shown) - 1) for number in range(MOST_ANSWERS)})
    body = ""
    for number, row in enumerate(shown[-1]["rows"]):
        cells = [
            [written(shown[place].get("update")), str(mapping(rows[number]).get("answer", "")) or "(empty)"]
            for place in places
            if number < len(rows := shown[place]["rows"])
        ]
        reference = mapping(row).get("expected")
        cells += [["of the row", str(reference)]] if reference else []
        body += f"<h3>{escape(str(mapping(row).get('prompt', '')))}</h3>{table(['update', 'answer'], cells, numbers=1)}"
    names = list(mapping(shown[-1].get("scores")))
    if names:
        scores = [
            [shown[place].get("update"), *map(mapping(shown[place].get("scores")).get, names)]
            for place in places
        ]
        cells = [[written(value) for value in row] for row in scores]
        body = f"<h3>Beside the answers of the rows</h3>{table(['update', *names], cells, numbers=len(names) + 1)}{body}"
    return f"<section><h2>Answers to the same prompts</h2>{body}</section>"


def _label_bars(labels: dict[str, float]) -> str:
    if not labels:
        return ""
    total, largest = sum(labels.values()) or 1, max(labels.values()) or 1
    ordered = sorted(labels.items(), key=lambda label: -label[1])
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th>"
        f'<td class=bar><span style="width:{count / largest:.1%}"></span></td>'
        f"<td class=number>{count:,.0f}</td><td class=number>{count / total:.1%}</td></tr>"
        for name, count in ordered[:MOST_LABELS]
    )
    rest = ordered[MOST_LABELS:]
    more = ""
    if rest:
        more = f"<p class=note>{counted(len(rest), 'rarer label')}, down to {rest[-1][1]:,.0f} examples.</p>"
    title = "<caption>Examples for each label</caption>"
    return f"<div><table class=bars>{title}<tbody>{rows}</tbody></table>{more}</div>"


def planned(story: Story) -> str:
    """Return what had been predicted beside what was measured, for a run that was planned and has measured it."""
    line = compare_line(story.predicted, story.compared) if story.predicted and story.compared else ""
    if not line:
        return ""
    note = "In brackets: by how much what was measured lies above or below what was predicted. Memory is the peak of the whole run."
    if reason := memory_note(story.predicted, story.compared, story.run):
        note += f" {reason[:1].upper()}{reason[1:]}."
    return (
        f"<section><h2>Predicted and measured</h2><p>{escape(line[:1].upper() + line[1:])}.</p>"
        f"<p class=note>{note}</p></section>"
    )


def over_an_update(timeline: Timeline | None, plan: dict[str, Any]) -> str:
    """Return the memory over an update, as the plan predicted it; "" where none is kept with the run."""
    if timeline is None:
        return ""
    at = {str(key): str(value) for key, value in mapping(plan.get("peak_at")).items()}
    where = place_of_peak(at, int(as_number(plan.get("peak_bytes")) or 0), timeline)
    note = "Predicted by the plan before the run began, without what the process itself takes."
    return f"<section><h2>Memory, predicted</h2><div class=charts>{layered(timeline, where)}</div><p class=note>{note}</p></section>"


def read_timeline(path: Path) -> Timeline | None:
    """Return the memory over an update as a run keeps it; None where there is none that can be read.

    >>> read_timeline(Path("there/is/none.json")) is None
    True
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        segments = tuple(str(each) for each in content["segments"])
        seconds = tuple(float(each) for each in content["seconds"])
        kinds = {
            str(kind): tuple(int(each) for each in sizes) for kind, sizes in content["bytes_by_kind"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    lengths = {len(each) for each in (segments, seconds, *kinds.values())}
    return Timeline(segments, seconds, kinds) if kinds and lengths == {len(segments)} and segments else None


def certified(story: Story) -> str:
    """Return the laws of training as they were tried on the run's model and data."""
    if not story.certified:
        return ""
    certificate = Certificate.from_dict(story.certified)
    note = f"Tried in {certificate.dtype} on windows of {counted(certificate.rows, 'example')}, {clock(float(story.certified['time']))}."
    return f"<section><h2>Laws</h2>{laws_table(certificate.laws)}<p class=note>{note}</p></section>"


def setup(story: Story, plan: dict[str, Any]) -> str:
    """Return the section of the plan, the machine and the versions of libraries."""
    machine, versions = mapping(story.run.get("machine")), mapping(story.run.get("versions"))
    body = "".join(
        f"<div><h3>{title}</h3>{facts(flat(values))}</div>"
        for title, values in (("Plan", _of_plan(plan)), ("Machine", machine), ("Versions", versions))
        if values
    )
    return f"<section><h2>How it was run</h2><div class=columns>{body}</div></section>" if body else ""


def _of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan that was searched for chose, and what it predicted in all; of the rest there is a page by `snugfit plan --html`."""
    if "choice" not in plan:
        return plan
    choice = {key: value for key, value in mapping(plan["choice"]).items() if key != "techniques"}
    return choice | {key: plan[key] for key in _PREDICTED if plan.get(key) is not None}


def recipe(text: str) -> str:
    """Return the section of the recipe with every setting; "" where there is none."""
    if not text.strip():
        return ""
    lines = re.sub(r"(?m)^([ \-]*)([\w./]+)(:)(?=\s|$)", r"\1<b>\2</b>\3", escape(text.strip()))
    body = details("The recipe, with every setting", f"<pre tabindex=0>{lines}</pre>")
    return f"<section><h2>Recipe</h2>{body}</section>"


def checkpoints(story: Story, run_dir: Path) -> str:
    """Return the table of checkpoints; "" where there are none."""
    rows = [
        [
            written(event.get("update")),
            str(event.get("path", "")),
            written(event.get("seconds"), "seconds"),
            written(event.get("blocked_seconds", event.get("seconds")), "seconds"),
            "kept" if event.get("path") and (run_dir / str(event["path"])).exists() else "removed since",
        ]
        for event in story.checkpoints[-MOST_ROWS:]
    ]
    if not rows:
        return ""
    body = table(["update", "folder", "time to save", "training waited", ""], rows, numbers=1)
    if len(rows) > OPEN_ROWS:
        body = details(f"All {len(story.checkpoints):,}", body)
    return f"<section><h2>Checkpoints</h2>{body}</section>"


_REGISTERED = {
    "compared.rows": "rows that were compared",
    "compared.max_abs_difference": "largest difference",
    "uri": "address",
}
"""Facts of a registered model, in words."""


def registered(story: Story) -> str:
    """Return the section of the registered models; "" where there are none."""
    models = "".join(
        facts(
            (_REGISTERED.get(key, key), value)
            for key, value in flat(dict(event))
            if key not in ("event", "time")
        )
        for event in story.registered
    )
    return f"<section><h2>Registered model</h2>{models}</section>" if models else ""


def next_time(story: Story) -> str:
    """Return what the evaluations of a finished run say about its length."""
    if story.status != "finished" or not story.evaluations:
        return ""
    return f"<section><h2>Next time</h2><p>{escape(advise(story).text)}</p></section>"


def footer(story: Story) -> str:
    """Return the last line of the page."""
    torn = f" {counted(story.ignored, 'unreadable line')} left out." if story.ignored else ""
    last = f"the last one of {clock(story.last_event)}"
    return f"<footer>Made by Snugfit from this run’s events, {last}.{torn}</footer>"
