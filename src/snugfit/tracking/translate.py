"""Events of the spool in a tracker's terms: metrics by step, parameters once, tags."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from snugfit.system.redaction import redacted
from snugfit.system.user_objects import is_python_path
from snugfit.tracking.backend import SYSTEM, Batch, DataInput, Histogram, Metric, Picture
from snugfit.tracking.spool import Event

MAX_NAME = 250
MAX_VALUE = (
    5000  # MLflow takes 6,000 characters in a parameter and 8,000 in a tag; older servers 5,000 in a tag
)

_ODD = re.compile(r"[^\w\-. /]", re.ASCII)
_WORDS = {"@": "_at_", "%": "_percent_", "*": "_any_"}


def to_batch(events: Iterable[Event], *, with_params: bool = True) -> tuple[Batch, int]:
    """Translate events, in order; returns the batch and how many events had a shape that cannot be translated.

    - `update` gives `train/<metric>`, `evaluation` gives `evaluation/<metric>`, both at the step `update`; nested metrics
      are joined with "/"; `end` gives `best/<metric>` at the best update and `run/<figure>`.
    - `run` gives parameters (the recipe with dotted names, its plan as it was resolved, counts) and tags (versions,
      machine), and the data's sources as inputs. Parameters cannot be changed in MLflow, so they are sent once (`with_params`) and a
      resume skips them.
    - `folds`, of a cross-validation, gives `mean/<metric>` and its spread, at the step of finished folds; a run's `parent` is the
      tracker's run that it is shown under.
    - `trials`, of a search, gives the value of a trial as `trial/<metric>` and the best so far as `best/<metric>`, at the step of the trial.
    - `system` gives `system/<figure>`, where MLflow looks for them.
    - `pictures` and `histograms` give what they say at the step `update`; `files` names those of the run's folder to keep with the run.
    - `certified` gives a tag for each law, such as `certified.resume` = "held, error 0.0e+00, bound 0e+00".
    - A non-finite metric is not sent, because MLflow would store an infinity as 1.8e308. It leaves the tag
      `non_finite.<metric>` = "NaN at update 12" (the latest one).
    """
    batch = Batch()
    malformed = 0
    for event in events:
        translate = _TRANSLATORS.get(event["event"])
        if translate is None:
            continue
        part = Batch()
        try:
            translate(event, part)
            batch.start_ms = batch.start_ms or _time_ms(event)
        except (AttributeError, KeyError, TypeError, ValueError):
            malformed += 1
            continue
        batch.metrics += part.metrics
        batch.pictures += part.pictures
        batch.histograms += part.histograms
        batch.files += part.files
        batch.tags = {key: value for key, value in batch.tags.items() if key not in part.untagged} | part.tags
        batch.untagged = (batch.untagged | part.untagged) - set(part.tags)
        if with_params and part.params:
            batch.params, batch.inputs, with_params = part.params, part.inputs, False
        if part.status:
            batch.status, batch.status_time_ms = part.status, part.status_time_ms
    return batch, malformed


def tracker_name(name: str) -> str:
    """Return the name in the tracker's alphabet (letters, digits and ``_-. /``); different names stay different.

    >>> tracker_name("recall@5"), tracker_name("train//loss"), tracker_name("f1(ä)")
    ('recall_at_5', 'train/loss', 'f1_u28__ue4__u29_')
    """
    plain = _ODD.sub(lambda odd: _WORDS.get(odd[0], f"_u{ord(odd[0]):x}_"), name)
    parts = [part if part.strip(".") else "_" * max(len(part), 1) for part in plain.split("/") if part] or [
        "_"
    ]
    plain = "/".join(parts)
    if len(plain) > MAX_NAME:
        plain = f"{plain[: MAX_NAME - 9]}.{zlib.crc32(name.encode()):08x}"
    return plain


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings with dotted names; lists are leaves, empty mappings have none.

    >>> dict(flatten({"train": {"epochs": 3}, "data": {"text": ["a", "b"]}}))
    {'train.epochs': 3, 'data.text': ['a', 'b']}
    """
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            yield from flatten(item, f"{name}.")
        else:
            yield name, item


def techniques_by_name(techniques: Any) -> Any:
    """Return a recipe's list of techniques as a mapping, so that each setting is a parameter of its own.

    >>> techniques_by_name(["mixup", {"ema": {"decay": 0.9}}, {"clip_norm": 1.0}])
    {'mixup': True, 'ema': {'decay': 0.9}, 'clip_norm': 1.0}
    """
    if not isinstance(techniques, list):
        return {} if techniques is None else techniques
    by_name: dict[str, Any] = {}
    for entry in techniques:
        for name, settings in entry.items() if isinstance(entry, Mapping) else ((str(entry), True),):
            by_name[name] = True if settings in (None, {}) else settings
    return by_name


def _run(event: Event, batch: Batch) -> None:
    recipe = dict(event.get("recipe") or {})
    params = dict(flatten({**recipe, "techniques": techniques_by_name(recipe.get("techniques"))}))
    params.update(
        flatten({"plan": event.get("plan") or {}})
    )  # as it was resolved, over what the recipe asked for
    params.update(flatten({"parameters": event.get("parameters") or {}}))
    data = dict(event.get("data") or {})
    labels = data.pop("labels", None)
    for name in ("sources", "balanced"):
        if parts := data.pop(name, None):
            data[name] = {
                each["name"]: {key: value for key, value in each.items() if key != "name"} for each in parts
            }
    params.update(flatten({"rows": data}))
    params.update(
        {key: event[key] for key in ("total_updates", "updates_per_epoch", "window") if key in event}
    )
    batch.params = {tracker_name(key): _text(value) for key, value in params.items()}
    batch.inputs = [_input(each) for each in event.get("inputs") or ()]
    _tag(batch, "snugfit.run", f"{event.get('name')}/{event.get('id')}")
    if event.get("parent"):
        _tag(batch, "mlflow.parentRunId", event["parent"])  # MLflow shows it under that run
    for group in ("versions", "machine"):
        for key, value in flatten({group: event.get(group) or {}}):
            _tag(batch, key, value)
    if labels:
        _tag(batch, "labels", labels)
    _status(batch, "running", event)


def _input(given: Mapping[str, Any]) -> DataInput:
    """Return a source as trackers show it: a file by its name alone, as its folders are this machine's."""
    source = given["source"]
    is_code = given.get("is_code", is_python_path(source))
    name = source if is_code or "://" in source else Path(source).name
    columns = tuple(redacted(list(given.get("columns") or ())))
    return DataInput(redacted(name), given["sha256"], given["context"], is_code, given.get("rows"), columns)


def _update(event: Event, batch: Batch) -> None:
    _metrics(batch, "train", event["metrics"], event)
    if "epoch" in event:
        _metrics(batch, "train", {"epoch": event["epoch"]}, event)


def _system(event: Event, batch: Batch) -> None:
    _metrics(batch, SYSTEM, event["metrics"], event)


def _logged(event: Event, batch: Batch) -> None:
    _metrics(batch, "hooks", event["metrics"], event)


def _evaluation(event: Event, batch: Batch) -> None:
    _metrics(batch, "evaluation", event["metrics"], event)
    if "weights" in event:
        _tag(batch, "evaluated_weights", event["weights"])


def _answers(event: Event, batch: Batch) -> None:
    _metrics(batch, "answers", event.get("scores") or {}, event)


def _resume(event: Event, batch: Batch) -> None:
    batch.untagged |= {"stop_reason", "resumable"}
    _tag(batch, "resumed_at_update", event.get("update"))
    _status(batch, "running", event)


def _skipped(event: Event, batch: Batch) -> None:
    _tag(batch, "last_skipped_window", f"{event.get('window')}: {event.get('reason')}")


def _warning(event: Event, batch: Batch) -> None:
    _tag(batch, "last_warning", event["message"])


def _replan(event: Event, batch: Batch) -> None:
    _tag(batch, "last_replan", event["message"])


def _fit(event: Event, batch: Batch) -> None:
    _tag(batch, "fit", event["message"])


def _time_limit(event: Event, batch: Batch) -> None:
    _tag(batch, "time", event["message"])


def _attention(event: Event, batch: Batch) -> None:
    _tag(batch, "attention", ", ".join(event["kernels"]))


def _padding(event: Event, batch: Batch) -> None:
    _tag(batch, "padding", event["message"])


def _rows(event: Event, batch: Batch) -> None:
    _tag(batch, "rows", event["message"])


def _pictures(event: Event, batch: Batch) -> None:
    step, time_ms = int(event["update"]), _time_ms(event)
    batch.pictures += [
        Picture(tracker_name(name), _within(path), time_ms, step) for name, path in event["pictures"].items()
    ]


def _histograms(event: Event, batch: Batch) -> None:
    step, time_ms = int(event["update"]), _time_ms(event)
    for name, each in event["histograms"].items():
        if each["counts"]:
            ends = float(each["low"]), float(each["high"])
            batch.histograms.append(
                Histogram(tracker_name(f"weights/{name}"), *ends, tuple(each["counts"]), time_ms, step)
            )


def _files(event: Event, batch: Batch) -> None:
    batch.files += [_within(path) for path in event["files"]]


def _within(path: str) -> str:
    """Return a path in the run's folder, which may be someone else's: what is elsewhere is not sent.

    Raises:
        ValueError: it leads out of it.
    """
    parts = PureWindowsPath(path)  # which knows both separators
    if parts.anchor or ".." in parts.parts:
        raise ValueError(path)
    return path


def _end(event: Event, batch: Batch) -> None:
    best = event.get("best") or {}
    if best:
        _metrics(batch, "best", best["metrics"], {**event, "update": best["update"]})
    figures = {
        "updates": event.get("updates"),
        "epochs": event.get("epochs"),
        "seconds": event.get("seconds"),
        "examples_per_second": event.get("examples_per_second"),
        "peak_memory_bytes": event.get("peak_memory_bytes"),
    }
    _metrics(batch, "run", figures, {**event, "update": event.get("updates") or 0})
    for key in ("stop_reason", "resumable"):
        if event.get(key) is not None:
            _tag(batch, key, event[key])
        else:
            batch.untagged.add(key)
    _tag(batch, "snugfit.status", event["status"])
    _status(batch, event["status"], event)


def _folds(event: Event, batch: Batch) -> None:
    for part in ("mean", "deviation", "corrected_error"):
        _metrics(batch, part, event[part], event)


def _trials(event: Event, batch: Batch) -> None:
    for part in ("trial", "best"):
        _metrics(batch, part, event[part], event)


def _register(event: Event, batch: Batch) -> None:
    for key in ("name", "version", "alias"):
        if event.get(key) is not None:
            _tag(batch, f"registered.{key}", event[key])


def _certified(event: Event, batch: Batch) -> None:
    for law in event["laws"]:
        error = "" if law["error"] is None else f", error {float(law['error']):.1e}"
        _tag(batch, f"certified.{law['name']}", f"{law['verdict']}{error}, bound {law['bound']:.0e}")


_TRANSLATORS = {
    "run": _run,
    "update": _update,
    "evaluation": _evaluation,
    "answers": _answers,
    "system": _system,
    "logged": _logged,
    "resume": _resume,
    "skipped": _skipped,
    "warning": _warning,
    "replan": _replan,
    "time": _time_limit,
    "fit": _fit,
    "attention": _attention,
    "padding": _padding,
    "rows": _rows,
    "pictures": _pictures,
    "histograms": _histograms,
    "files": _files,
    "end": _end,
    "folds": _folds,
    "trials": _trials,
    "register": _register,
    "certified": _certified,
}


def _metrics(batch: Batch, prefix: str, metrics: Mapping[str, Any], event: Event) -> None:
    step = int(event["update"])
    time_ms = _time_ms(event)
    for key, value in metrics.items():
        parent, _, rest = key.partition("/")
        # MLflow's file store keeps each metric in a file: 'learning_rate' cannot be a folder for 'learning_rate/head' too
        name = f"{prefix}/{parent}.{rest}" if rest and parent in metrics else f"{prefix}/{key}"
        if isinstance(value, Mapping):
            _metrics(batch, name, value, event)
        elif isinstance(value, (int, float)):
            if math.isfinite(value):
                batch.metrics.append(Metric(tracker_name(name), float(value), time_ms, step))
            else:
                _tag(batch, f"non_finite.{name}", f"{value} at update {step}")


def _tag(batch: Batch, key: str, value: Any) -> None:
    batch.tags[tracker_name(key)] = _text(value)


def _status(batch: Batch, status: str, event: Event) -> None:
    batch.status, batch.status_time_ms = status, _time_ms(event)


def _time_ms(event: Event) -> int:
    return int(float(event["time"]) * 1000)


def _text(value: Any) -> str:
    value = redacted(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
