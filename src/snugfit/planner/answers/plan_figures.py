"""A plan's figures as people read them, the same in the terminal, on a plan's page and in a run's report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.planner.answers.answer import Answer, Choice, FrontierBound, FrontierPoint, Prediction
from snugfit.units import counted, format_seconds

KINDS = (
    "weights",
    "gradients",
    "optimizer",
    "averages",
    "activations",
    "temporaries",
    "workspace",
    "inputs",
)
"""The roles that bytes have, in the order in which they are told (`records.Role`, which needs torch to be imported)."""

_FAR = 1.01
"""Times what was predicted, from which on it is said why a run takes more: what is left free on a CPU."""

NOT_SEARCHED = "Estimates are of the arithmetic alone; snugfit plan --frontier searches every level."

_LONG = 48 * 3600.0  # seconds that are told in days
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


def brief_bytes(count: float) -> str:
    """Return bytes in three digits, for sentences.

    >>> brief_bytes(24 * 2**30), brief_bytes(1023.7 * 2**20), brief_bytes(0)
    ('24 GiB', '1 GiB', '0 B')
    """
    return _scaled(count, 1024, _BYTES)


def brief_seconds(seconds: float) -> str:
    """Return a duration in three digits, however short or long.

    >>> [brief_seconds(seconds) for seconds in (0.00021, 0.021, 0.214, 11400, 2.14e6)]
    ['210 µs', '21 ms', '0.21 s', '3h 10m', '24.8 days']
    """
    if seconds < 1e-3:
        return f"{digits(seconds * 1e6)} µs"
    if seconds < 0.1:
        return f"{digits(seconds * 1e3)} ms"
    if seconds >= _LONG:
        return f"{digits(seconds / 86_400)} days"
    if seconds >= 59.5:
        return format_seconds(seconds)
    return f"{seconds:.2f} s" if seconds < 10 else f"{digits(seconds)} s"


def brief_number(count: float, unit: str = "") -> str:
    """Return a count in three digits with a decimal prefix.

    >>> brief_number(41.23e12, "FLOP"), brief_number(8_030_261_248), brief_number(812)
    ('41.2 TFLOP', '8.03 G', '812')
    """
    return _scaled(count, 1000, [f"{prefix}{unit}" for prefix in _THOUSANDS])


def digits(value: float) -> str:
    """Three digits, or all those before the point.

    >>> digits(0.05631), digits(24.0), digits(5405.4)
    ('0.0563', '24', '5,405')
    """
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def share(part: float) -> str:
    """Return a share in whole percent, but never 0% of what is there.

    >>> share(0.414), share(0.0004), share(0.0)
    ('41%', '<1%', '0%')
    """
    return "<1%" if 0 < part < 0.005 else f"{part:.0%}"


def printable(text: object) -> str:
    r"""Text on one line and without what a terminal would take for a command: names come from the user's files.

    >>> printable("a\x1b[31m\nb")
    'a�[31m�b'
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text))


def basis(prediction: Prediction, what: str) -> str:
    """Return whether the memory or the time of a plan is measured or predicted; all that was not measured is predicted."""
    return "measured" if str(prediction.confidence.get(what, "")).startswith("measured") else "predicted"


def device_words(answer: Answer) -> str:
    """Return the device, and how many of it.

    >>> from types import SimpleNamespace as Some
    >>> device_words(Some(device={"name": "rtx4090"}, choice=Some(devices=2)))
    'each of 2 × rtx4090'
    """
    name = printable(answer.device.get("name", "this device"))
    return name if answer.choice.devices == 1 else f"each of {answer.choice.devices} × {name}"


def headline(answer: Answer) -> str:
    """Return whether it fits, with what the device has to have, and how long it takes."""
    prediction, device, budget = answer.prediction, device_words(answer), brief_bytes(answer.budget_bytes)
    memory = basis(prediction, "memory")
    if answer.fits:
        parts = [f"{brief_bytes(prediction.reserved_bytes)} of {budget} on {device}"]
        parts.append(f"{brief_seconds(prediction.seconds_per_update)} an update")
        if prediction.seconds_total is not None:
            parts.append(f"{brief_seconds(prediction.seconds_total)} in all")
        time = basis(prediction, "time")
        how = memory if memory == time else f"memory {memory}, time {time}"
        most = answer.largest
        start = "Fits" if most is None else f"The largest {most.what} that fits: {most.value:,} {most.unit}"
        return f"{start}: {', '.join(parts)} ({how})"
    if (
        prediction.reserved_bytes <= answer.budget_bytes and answer.why
    ):  # it is not the device's memory that is short
        return f"Does not fit on {device}: {printable(answer.why[0])}"
    need = brief_bytes(prediction.reserved_bytes)
    return f"Does not fit: the smallest plan takes {need}, the budget on {device} is {budget} ({memory})"


def about_words(about: Mapping[str, Any]) -> list[str]:
    """Return what the plan is for: model, parameters, recipe, data, sizes."""
    about = dict(about)
    parts = [printable(about.pop("model"))] if about.get("model") else []
    parameters = about.pop("parameters", None)
    if isinstance(parameters, Mapping):
        total, trained = parameters.get("total", 0), parameters.get("trainable", parameters.get("total", 0))
        parts.append(f"{_parameters(total)} parameters")
        if total != trained:
            parts[-1] += f", {_parameters(trained)} of them trained"
    elif parameters:
        parts.append(f"{_parameters(parameters)} parameters")
    for name, value in about.items():
        entries = value.items() if isinstance(value, Mapping) else [(name, value)]
        parts += [f"{printable(key).replace('_', ' ')} {_value(entry)}" for key, entry in entries if entry]
    return parts


def memory_rows(answer: Answer) -> list[tuple[str, int]]:
    """Return the kinds of bytes at the peak in the order of `KINDS`, then what the device has to have besides.

    Their sum is `reserved_bytes`.
    """
    prediction = answer.prediction
    known = [kind for kind in KINDS if kind in prediction.peak_by_kind]
    rows = [
        (kind, prediction.peak_by_kind[kind])
        for kind in [*known, *sorted(set(prediction.peak_by_kind) - set(KINDS))]
    ]
    besides = prediction.reserved_bytes - prediction.peak_bytes
    context = int(answer.device.get("reserved") or 0)
    if 0 < context < besides:
        rows += [("allocator", besides - context), ("context", context)]
    else:
        rows.append(("overhead", besides))
    return [(kind, count) for kind, count in rows if count > 0]


def peak_place(peak_at: Mapping[str, str]) -> str:
    """Return where in the step memory is highest.

    >>> peak_place({"segment": "backward 2", "module": "layers.3.mlp", "operator": "aten.mm.default"})
    'backward 2, layers.3.mlp, aten.mm.default'
    """
    return ", ".join(printable(peak_at[key]) for key in ("segment", "module", "operator") if peak_at.get(key))


def speed_words(prediction: Prediction) -> list[str]:
    """Tokens and examples a second, FLOPs, and the share of what the device could compute."""
    parts = []
    if prediction.tokens_per_second is not None:
        parts.append(f"{digits(prediction.tokens_per_second)} tokens/s")
    parts.append(f"{digits(prediction.examples_per_second)} examples/s")
    parts.append(f"{brief_number(prediction.flops_per_update, 'FLOP')} an update")
    parts.append(f"{share(prediction.share_of_peak)} of the device's peak")
    return parts


def speed_unit(answer: Answer) -> str:
    """Return what the speeds of an answer's levels are counted in: tokens, or examples where the data has none."""
    return "examples/s" if answer.prediction.tokens_per_second is None else "tokens/s"


def speed_of(answer: Answer, one: FrontierPoint | FrontierBound) -> str:
    """Return how much of that a plan of a level does in a second."""
    prediction = answer.prediction
    examples = prediction.examples_per_second * prediction.seconds_per_update / one.seconds_per_update
    return digits(examples if one.tokens_per_second is None else one.tokens_per_second)


def choice_words(choice: Choice) -> list[str]:
    """Return a plan in a few words: how finely, in which precision, with what, on how many devices."""
    parts = [f"micro-batch {choice.micro_batch}", printable(choice.numerics)]
    parts += [technique_words(entry) for entry in choice.techniques]
    if choice.devices > 1 or choice.strategy != "single":
        parts.append(f"{printable(choice.strategy)} on {counted(choice.devices, 'device')}")
    return parts


def technique_words(entry: Any) -> str:
    """Return an entry of a recipe.

    >>> technique_words({"lora": {"rank": 16, "targets": "all"}}), technique_words({"recompute": {"budget": None}})
    ('lora (rank 16, targets all)', 'recompute')
    """
    if not isinstance(entry, Mapping):
        return printable(entry)
    words = {name: _settings(settings or {}) for name, settings in entry.items()}
    return ", ".join(
        f"{printable(name)} ({settings})" if settings else printable(name) for name, settings in words.items()
    )


def compare_line(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Predicted beside measured, and by how much what was measured lies above or below what was predicted.

    Args:
        predicted, measured: `peak_bytes` and `seconds_per_update`; one that is missing is not told. What was measured may have
            `peak_bytes_by_rank`.

    >>> compare_line({"peak_bytes": 412 * 2**20, "seconds_per_update": 0.21}, {"peak_bytes": 405 * 2**20})
    'predicted 412 MiB and 0.21 s an update; measured 405 MiB (1.7 % below)'
    """
    figures = (("peak_bytes", brief_bytes, ""), ("seconds_per_update", brief_seconds, " an update"))
    foretold, measurements = [], []
    for name, write, unit in figures:
        before, after = _positive(predicted.get(name)), _positive(measured.get(name))
        if before is not None:
            foretold.append(f"{write(before)}{unit}")
        if after is not None:
            error = "" if before is None else f" ({_apart(after / before - 1)})"
            measurements.append(f"{write(after)}{'' if before is not None else unit}{error}")
    parts = (("predicted", foretold), ("measured", measurements))
    ranks = measured.get("peak_bytes_by_rank")
    return "; ".join(f"{word} {' and '.join(figures)}" for word, figures in parts if figures) + (
        f", the most of {len(ranks)} devices" if isinstance(ranks, list) else ""
    )


def memory_note(predicted: Mapping[str, Any], measured: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Return why a run was resident with more than predicted, where it left to the C library when freed memory goes back; "" where it did not.

    Args:
        run: its header, of which the machine has `mmap_threshold_bytes` where memory went back at once.

    >>> run = {"plan": {"device": "cpu"}, "machine": {"platform": "Linux-6.1-x86_64"}}
    >>> bool(memory_note({"peak_bytes": 100}, {"peak_bytes": 131}, run)), memory_note({"peak_bytes": 100}, {"peak_bytes": 100}, run)
    (True, '')
    """
    before, after = _positive(predicted.get("peak_bytes")), _positive(measured.get("peak_bytes"))
    plan, machine = (run.get(part) or {} for part in ("plan", "machine"))
    on_linux = str(plan.get("device")).startswith("cpu") and str(machine.get("platform")).startswith("Linux")
    if before is None or after is None or after < _FAR * before:
        return ""
    if not on_linux or "mmap_threshold_bytes" in machine:
        return ""
    return (
        "what was freed stays with the process, since the plan leaves room for it; "
        "with a budget.memory near the prediction it goes back at once"
    )


def _apart(part: float) -> str:
    """Return how far above or below what was predicted something lies, by its share of that.

    >>> _apart(0.13), _apart(-0.7142), _apart(11.02), _apart(0.0)
    ('13 % above', '71 % below', '12 × as much', 'as predicted')
    """
    if part >= 1:
        return f"{1 + part:.2g} × as much" if part < 98.5 else f"{1 + part:.0f} × as much"
    percent = 100 * abs(part)
    if percent < 0.005:
        return "as predicted"
    size = f"{percent:.2g}" if percent < 99.5 else f"{percent:.0f}"
    return f"{size} % {'above' if part > 0 else 'below'}"


def _positive(value: object) -> float | None:
    """Return the value if it can be compared: events may come from another version."""
    known = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
    return float(value) if known else None  # type: ignore[arg-type]


def _settings(settings: Mapping[str, Any]) -> str:
    given = {key: value for key, value in settings.items() if value not in (None, (), [], {})}
    return ", ".join(f"{printable(key)} {_value(value)}" for key, value in given.items())


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(_value(entry) for entry in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(value)


def _parameters(count: float) -> str:
    return (
        f"{count:,}" if count < 1e6 else brief_number(count).replace("G", "B")
    )  # a billion, as models are named


def _scaled(count: float, size: int, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(count) < size - 0.5:
            return f"{digits(count)} {unit}".rstrip()
        count /= size
    return f"{digits(count)} {units[-1]}"
