"""A run's events in words: header, progress, evaluations, the end, and what to do next."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.data.files.file_formats import READERS
from snugfit.data.named_sources import LOSS_OF
from snugfit.data.report import has_epochs, source_words
from snugfit.display.run_state import Standing
from snugfit.errors import short_path
from snugfit.kit.metric_directions import is_of_class
from snugfit.results.run_folder import QUARANTINE, RunFolder
from snugfit.tasks import known
from snugfit.tracking.spool import SMOKE
from snugfit.units import counted, format_bytes, format_seconds

_MOST_LABELS = 6
_FEW_TO_VALIDATE_ON = 20
_MUCH_PADDING = 0.2
_DAY = 86400.0


def number(value: Any) -> str:
    """Return a metric with four decimals, or four digits where that would say nothing.

    >>> number(0.5), number(12345.678), number(0.00002), number(float("nan"))
    ('0.5000', '1.235e+04', '2e-05', 'nan')
    """
    if not isinstance(value, (int, float)):
        return "-" if value is None else str(value)
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.4g}"


_MOST_PARTS, _MOST_READ, _MOST_SCORED = 6, 80, 120
"""Of an example that is shown on one line: its parts, and the characters of one that is read and of one that is scored."""


def run_dir(run: Mapping[str, Any]) -> str:
    """Return the folder of the run that an event describes, as one would type it; "" where it has none."""
    recipe = run.get("recipe") or {}
    if not (run.get("run_dir") or run.get("id")):
        return ""
    path = run.get("run_dir") or Path(recipe.get("output") or "runs") / str(run.get("name")) / str(
        run.get("id")
    )
    return short_path(str(path))


def decay_words(counts: Mapping[str, int]) -> str:
    """Return which weight decay how many parameters have; nothing where none is decayed.

    >>> decay_words({"0.01": 22_600_000, "0": 45_000})
    '0.01 on 22.6M parameters, none on 45k'
    """
    if not any(float(decay) for decay in counts):
        return ""
    first, *others = (
        f"{decay if float(decay) else 'none'} on {_count(number)}" for decay, number in counts.items()
    )
    return ", ".join([f"{first} parameters", *others])


def header_lines(run: Mapping[str, Any]) -> list[str]:
    """Return what is trained on what, and how it fits."""
    recipe, plan, data = run.get("recipe") or {}, run.get("plan") or {}, run.get("data") or {}
    parameters = run.get("parameters") or {}
    lines = [f"{run.get('name', 'run')}  {run_dir(run) or 'nothing is written'}"]
    model = [short_path(recipe["model"])] if "model" in recipe else []
    if parameters:
        total, trainable = parameters.get("total", 0), parameters.get("trainable", 0)
        model.append(
            f"{_count(total)} parameters{'' if total == trainable else f', {_count(trainable)} of them trained'}"
        )
    if recipe.get("from_scratch"):
        model.append("new weights")
    lines.append(f"  model   {', '.join(model)}")
    if decay := decay_words(run.get("weight_decay") or {}):
        lines.append(f"  decay   {decay}")
    lines.append(f"  data    {_data(data)}")
    if padding := data.get("padding"):
        remedy = "; packing or length_grouping would save it" if padding >= _MUCH_PADDING else ""
        lines.append(f"          {padding:.0%} of the tokens in micro-batches are padding{remedy}")
    if few := _few_to_validate_on(data):
        lines.append(f"          {few}")
    lines += [f"          {source_words(each)}" for each in data.get("sources") or ()]
    if balanced := data.get("balanced"):
        more = f" and {len(balanced) - _MOST_LABELS} more" if len(balanced) > _MOST_LABELS else ""
        words = "; ".join(map(source_words, balanced[:_MOST_LABELS]))
        lines.append(f"  balance by {data.get('balanced_by')}: {words}{more}")
    if data.get("form"):
        named = data.get("unit") in ("windows", "blocks", "examples")
        form = data["form"] if named else f"conversations as {data['form']}"
        lines.append(f"  rows    {form}")
    if baseline := data.get("baseline"):
        scores = ", ".join(f"{name} {number(value)}" for name, value in baseline.items())
        lines.append(f"  naive   {scores}: the forecast that repeats the last season")
    if run.get("example"):
        lines.append(f"  reads   {example_words(run['example'])}")
    labels = list(data.get("labels") or data.get("classes") or {})
    if labels:
        more = f" and {len(labels) - _MOST_LABELS} more" if len(labels) > _MOST_LABELS else ""
        lines.append(f"  labels  {', '.join(labels[:_MOST_LABELS])}{more}")
    lines.append(f"  plan    {_plan(run, recipe, plan)}")
    learned = [recipe.get("optimizer"), recipe.get("schedule"), *(recipe.get("techniques") or [])]
    techniques = [_technique(entry) for entry in learned if entry]
    if techniques:
        lines.append(f"  learn   {', '.join(techniques)}")
    return lines


def example_words(parts: Sequence[Sequence[Any]]) -> str:
    """Return an example as the model reads it, on one line, with what is scored in brackets.

    >>> example_words([["two and two?", False], ["four<eos>", True]])
    'two and two?⟦four<eos>⟧'
    """
    words = []
    for text, scored in parts[:_MOST_PARTS]:
        line = str(text).replace("\n", "↵")
        most = _MOST_SCORED if scored else _MOST_READ
        if len(line) > most:
            line = f"{line[: most // 2]} … {line[-most // 2 :]}"
        words.append(f"⟦{line}⟧" if scored else line)
    return "".join(words) + (" …" if len(parts) > _MOST_PARTS else "")


def progress_parts(standing: Standing) -> list[tuple[int, str]]:
    """Return what a progress line says, each part with its rank; where room is short, the highest ranks go first."""
    total, left = standing.total, standing.seconds_left()
    parts = [
        (1, f"{100 * standing.window / total:3.0f}%" if total else ""),
        (5, f"{standing.update:,}/{total:,}" if total else f"update {standing.update:,}"),
        (2, f"loss {number(standing.loss)}"),
        (6, f"lr {standing.learning_rate:.2g}"),
        *((9, f"{name} {number(value)}") for name, value in standing.logged.items()),
        (4, f"{_rate(standing.seconds_per_example)} examples/s"),
        (7, "" if left is None else f"{format_seconds(standing.seconds_spent())} spent"),
        (3, "" if left is None else f"{format_seconds(left)} left"),
        (8, "" if left is None else f"ends {_clock(left)}"),
    ]
    return [(rank, text) for rank, text in parts if text]


def evaluation_names(metrics: Mapping[str, Any], *, epochs: bool = True) -> list[str]:
    """Return the heads of the columns of evaluations.

    Args:
        epochs: whether the run has some.
    """
    return [*["epoch"] * epochs, "update", "train loss", "loss", *_columns(metrics)]


def _columns(metrics: Mapping[str, Any]) -> list[str]:
    """Return the metrics behind the loss that have a column; those of sources and of classes, which may be many, are on the run's page."""
    behind = (name for name in metrics if name != "loss" and not name.startswith(LOSS_OF))
    return [name for name in behind if not is_of_class(name, metrics)]


def table_row(values: Sequence[str], names: Sequence[str]) -> str:
    """Return values right under the heads of their columns."""
    return "  ".join(f"{value:>{max(8, len(name))}}" for value, name in zip(values, names, strict=True))


def evaluation_cells(event: Mapping[str, Any], *, epochs: bool = True) -> tuple[list[str], str]:
    """Return one evaluation, in the columns of `evaluation_names`, and the mark behind it."""
    metrics = event["metrics"]
    values = [
        *[f"{event['epoch']:.2f}"] * epochs,
        f"{event['update']:,}",
        number(event.get("train_loss")),
        number(metrics.get("loss")),
    ]
    values += [number(metrics[name]) for name in _columns(metrics)]
    weights = "" if event.get("weights", "raw") == "raw" else f"  {event['weights']}"
    return values, f"{'  best' if event['best'] else '      '}{weights}"


def end_lines(run: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
    """Return how the run ended, and its best evaluation."""
    status, reason = end["status"], end.get("stop_reason")
    parts = [counted(end.get("updates", 0), "update")]
    if has_epochs(run.get("data") or {}):
        parts.append(counted(end.get("epochs", 0), "epoch"))
    if end.get("seconds") is not None:
        parts.append(format_seconds(end["seconds"]))
    if rate := end.get("examples_per_second"):
        parts.append(f"{rate:,.0f} examples/s" if rate >= 10 else f"{rate:.2g} examples/s")
    if end.get("peak_memory_bytes"):
        parts.append(f"peak memory {format_bytes(end['peak_memory_bytes'])}")
    lines = [f"{status:<10}{', '.join(parts)}"]
    if end.get("went_back"):
        lines.append(f"{'note':<10}went back because of {_windows(end['went_back'])}; the events say why")
    if reason and status != "failed":  # a failure is also an error, which says it
        lines.append(f"{'why':<10}{reason}")
    best = end.get("best") or {}
    if best.get("metrics"):
        lines.append(f"{'best':<10}{_best(run, best)}")
    advice = end.get("advice") or {}
    if advice.get("verdict") in ("longer", "shorter"):
        text = f"train {advice['verdict']}, about {advice['epochs']:.3g} epochs. {advice['reason']}"
        lines.append(f"{'advice':<10}{text}")
    return lines


def _windows(numbers: list[int]) -> str:
    return f"window{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def next_lines(
    run: Mapping[str, Any], end: Mapping[str, Any], registered: str, *, of_many: bool = False
) -> list[str]:
    """Return where the run lives and what to type next; what comes after one `of_many` runs is said of all of them."""
    folder = run_dir(run)
    if not folder:
        return []
    if end["status"] == "failed" and not os.path.isdir(folder):
        return []  # nothing had been trained, and nothing was kept
    lines = [f"{'run':<10}{folder}"]
    skipped = ((run.get("data") or {}).get("skipped") or {}).values()
    if skipped and os.path.exists(os.path.join(folder, QUARANTINE)):
        lines.append(f"{'left out':<10}{counted(sum(skipped), 'row')} in {os.path.join(folder, QUARANTINE)}")
    if os.path.exists(os.path.join(folder, "report.html")):
        lines.append(f"{'report':<10}{os.path.join(folder, 'report.html')}")
    if of_many:
        return lines
    if end.get("resumable"):
        of_recipe = (run.get("recipe") or {}).get("task") is not None
        again = f"snugfit resume {shlex.quote(folder)}" if of_recipe else f'sf.train(…, resume="{folder}")'
        return [*lines, f"{'next':<10}{again}"]
    if option := run.get(SMOKE):  # its model has learned nothing to predict with
        return [
            *lines,
            *([f"{'next':<10}the same command without {option}"] if end["status"] == "finished" else []),
        ]
    card = known((run.get("recipe") or {}).get("task"))
    from snugfit.models.bundle import code_in  # it loads torch, which the lines of other events do without

    consent = " --allow-code" if code_in(RunFolder(Path(folder)).best) else ""
    if end["status"] == "finished" and card is not None and card.model == "decoder":
        lines.append(f"{'next':<10}snugfit generate {shlex.quote(folder)} --prompt '…'{consent}")
    elif end["status"] == "finished" and card is not None and card.predicts_files:
        rows = _new_rows(card.new_rows, (run.get("recipe") or {}).get("data") or {})
        lines.append(
            f"{'next':<10}snugfit predict {shlex.quote(registered or folder)} {rows} -o predictions.csv{consent}"
        )
    return lines


def _new_rows(name: str, data: Mapping[str, Any]) -> str:
    """Return the name of a file of new rows, of the kind that was trained on.

    >>> _new_rows("NEW.jsonl", {"train": "tickets.csv"}), _new_rows("PICTURES", {"train": "photos.csv"})
    ('NEW.csv', 'PICTURES')
    """
    kind = Path(str(data.get("train"))).suffix.lower()
    return str(Path(name).with_suffix(kind)) if Path(name).suffix and kind in READERS else name


def _best(run: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    metrics = dict(best["metrics"])
    name = str(((run.get("recipe") or {}).get("evaluate") or {}).get("best") or "").rpartition(":")[2]
    name = name if name in metrics else next(iter(metrics))
    first = f"{name} {number(metrics.pop(name))} at update {best['update']:,}"
    others = ", ".join(
        f"{other} {number(value)}"
        for other, value in metrics.items()
        if not is_of_class(other, best["metrics"])
    )
    return f"{first} ({others})" if others else first


def _few_to_validate_on(data: Mapping[str, Any]) -> str:
    """Return what so few rows to validate on are worth; "" where they are enough, none, or many tokens or steps each.

    >>> _few_to_validate_on({"validation": 4, "unit": "pictures"})
    'so few pictures decide which weights are kept: each is 25% of a score'
    """
    count, unit = data.get("validation", 0), data.get("unit", "rows")
    if not 0 < count < _FEW_TO_VALIDATE_ON or unit in ("blocks", "windows"):
        return ""
    if count == 1:
        return f"a single {unit.removesuffix('s')} decides which weights are kept: it is the whole score"
    return f"so few {unit} decide which weights are kept: each is {1 / count:.0%} of a score"


def _data(data: Mapping[str, Any]) -> str:
    unit = data.get("unit", "rows")
    to_train_on = counted(data.get("train", 0), unit.removesuffix("s"))
    parts = [f"{to_train_on} to train on", f"{data.get('validation', 0):,} to validate on"]
    if data.get("skipped"):
        parts.append(f"{sum(data['skipped'].values()):,} left out ({', '.join(data['skipped'])})")
    return ", ".join(parts)


def _plan(run: Mapping[str, Any], recipe: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    window = (recipe.get("train") or {}).get("global_batch")
    micro_batch, devices = plan.get("micro_batch"), plan.get("devices") or 1
    parts = []
    if sizes := run.get("window"):
        parts.append(f"window {sizes}{f' in micro-batches of {micro_batch}' if micro_batch else ''}")
    elif window and micro_batch and window % (micro_batch * devices) == 0:
        of_each = f"{window // (micro_batch * devices)} × {micro_batch}"
        parts.append(f"{f'{devices} × ' if devices > 1 else ''}{of_each} examples an update")
    elif window:
        micro_batches = f" in micro-batches of {micro_batch}" if micro_batch else ""
        parts.append(f"{counted(window, 'example')} an update{micro_batches}")
    if plan.get("numerics"):
        parts.append(str(plan["numerics"]))
    if device := plan.get("device"):
        parts.append(
            f"{devices} devices by {plan.get('strategy')} ({device})" if devices > 1 else str(device)
        )
    if run.get("total_updates"):
        epochs = not sizes and has_epochs(run.get("data") or {})
        per_epoch = f" ({run.get('updates_per_epoch', 0):,} an epoch)" if epochs else ""
        parts.append(f"{counted(run['total_updates'], 'update')}{per_epoch}")
    return ", ".join(parts)


def _technique(entry: Any) -> str:
    """Return a technique by its name, with the one setting that is looked at first."""
    if isinstance(entry, str):
        return entry
    ((name, settings),) = entry.items()
    first = next(iter((settings or {}).values()), None)
    return f"{name} {first:.3g}" if isinstance(first, (int, float)) and not isinstance(first, bool) else name


def _count(value: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,}"


def _rate(seconds_per_example: float) -> str:
    rate = 1 / seconds_per_example if seconds_per_example > 0 else math.nan
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _clock(seconds: float) -> str:
    """Return the time of day when that many seconds have passed."""
    form = "%H:%M" if seconds < _DAY else "%a %H:%M"
    return time.strftime(form, time.localtime(time.time() + seconds))
