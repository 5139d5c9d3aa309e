"""Pitfalls of examples as a model gets them, and of the loader that brings them."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from torch import Tensor

from snugfit.core.batch import IGNORE_INDEX, LABELS, Batch, inputs_of, labels_of
from snugfit.data.examples import Examples
from snugfit.data.loader import Loader
from snugfit.doctor.check_rows import FEW, overlap
from snugfit.doctor.findings import Certainty, Finding
from snugfit.errors import DataError
from snugfit.step.step import Step

LOOKED = 20_000
"""Rows of a list that are compared; of other data sets, which may decode a file for each, a tenth of that."""
CUT = 0.5
MOST_CLASSES = 1000
NEARLY_ALL = 0.99
STARVING_SECONDS, SLOW_SECONDS, MOST_ROUNDS = 0.01, 1.0, 3


def examine_examples(train: Any, validation: Any | None) -> list[Finding]:
    """Return what the examples of map-style data sets say, by what the model is given of them."""
    findings = [] if validation is None else list(overlap(_keys(train), _keys(validation), "examples"))
    return [*findings, *ignored_labels(_some(train))]


def class_counts(data: Any) -> Counter[str]:
    """Return rows by class, where each example has one whole number for a label; empty where it has something else."""
    counts: Counter[str] = Counter()
    for example in _some(data):
        try:
            (label,) = _flat(labels_of(example))
        except (DataError, ValueError):
            return Counter()
        if not isinstance(label, int):
            return Counter()
        counts[str(label)] += label != IGNORE_INDEX
    return counts if len(counts) <= MOST_CLASSES else Counter()


def ignored_labels(examples: Sequence[Any]) -> Iterator[Finding]:
    """Examples in which no label counts."""
    labels = [each[LABELS] for each in examples if isinstance(each, Mapping) and LABELS in each]
    flat = [_flat(each) for each in labels]
    if not flat:
        return
    empty = sum(all(label == IGNORE_INDEX for label in each) for each in flat)
    total, ignored = sum(map(len, flat)), sum(label == IGNORE_INDEX for each in flat for label in each)
    evidence = (f"{ignored:,} of {total:,} labels are {IGNORE_INDEX}, in {len(flat):,} examples",)
    fix = "check where labels are masked: prompts alone, and never the answer; raise data.max_length if answers are cut off"
    if total and ignored == total:
        yield Finding(
            "ignored_labels",
            Certainty.CERTAIN,
            "no label counts: nothing is learned",
            evidence=evidence,
            fix=fix,
        )
    elif empty >= FEW * len(flat):
        what = f"{empty:,} of {len(flat):,} examples ({empty / len(flat):.1%}) have no label that counts"
        yield Finding("ignored_labels", Certainty.LIKELY, what, evidence=evidence, fix=fix)
    elif ignored >= NEARLY_ALL * total:
        what = f"{ignored / total:.1%} of all labels are ignored"
        yield Finding("ignored_labels", Certainty.LIKELY, what, evidence=evidence, fix=fix)


def shifted_labels(windows: Sequence[Batch], ahead: int | None) -> Iterator[Finding]:
    """Token labels that are shifted twice, or not at all.

    Args:
        ahead: by how many places the loss shifts them itself; None where that is not known.
    """
    equal = counted = moved = moved_of = 0
    for window in windows:
        data = window.data
        if ahead is None or not isinstance(data, Mapping) or LABELS not in data or "input_ids" not in data:
            return
        ids, labels = data["input_ids"], data[LABELS]
        if labels.shape != ids.shape or labels.is_floating_point() or ids.shape[1] < 3:
            return
        scored = labels != IGNORE_INDEX
        equal, counted = equal + int((labels == ids)[scored].sum()), counted + int(scored.sum())
        inner = scored[:, :-1]
        moved, moved_of = (
            moved + int((labels[:, :-1] == ids[:, 1:])[inner].sum()),
            moved_of + int(inner.sum()),
        )
    if not counted or not moved_of:
        return
    if ahead == 1 and moved / moved_of > NEARLY_ALL and equal / counted < NEARLY_ALL:
        yield Finding(
            "shifted_labels",
            Certainty.CERTAIN,
            "labels are the next tokens already, and the loss shifts them once more: each token learns the one after the next",
            evidence=(f"{moved:,} of {moved_of:,} labels are the token behind them",),
            fix='batch["labels"] = batch["input_ids"].clone()  # the loss shifts',
        )
    elif ahead == 0 and equal / counted > NEARLY_ALL:
        yield Finding(
            "shifted_labels",
            Certainty.CERTAIN,
            "labels are the tokens themselves and the loss does not shift them: each token learns to repeat itself",
            evidence=(f"{equal:,} of {counted:,} labels are the token at their own place",),
            fix="loss: causal_lm   # which shifts; or labels that are the next tokens",
        )


def truncation(truncated: int, texts: int, max_length: int, longest: int) -> Iterator[Finding]:
    """Texts that are longer than what the model gets of them."""
    if not truncated or not texts:
        return
    share = truncated / texts
    yield Finding(
        "truncation",
        Certainty.LIKELY if share >= CUT else Certainty.WORTH_A_LOOK,
        f"{truncated:,} of {texts:,} texts ({share:.1%}) are cut to {max_length} tokens",
        where="data.max_length",
        evidence=(f"the longest has {longest:,} tokens",),
        fix=f"data: {{max_length: {min(2 * max_length, longest)}}}   # if the model and the memory take it",
    )


def starving(
    step: Step, loader: Loader, workers: int, windows: int = 4, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Finding]:
    """Detect a loader that takes longer than the step it feeds: at its fastest, so that a busy machine is not blamed on it.

    Args:
        workers: of the loader.
        windows: that are measured; one more goes before them.
        clock: in seconds.
    """
    seconds: list[tuple[float, float]] = []
    count = min(windows + 1, loader.order.windows_per_pass)
    for _ in range(MOST_ROUNDS):  # of few windows each may have waited for another process
        taken = _seconds_of(step, loader, count, clock)
        seconds += taken[1:] or taken
        loading, computing = min(load for load, _ in seconds), statistics.median(work for _, work in seconds)
        if loading <= max(computing, STARVING_SECONDS) or loading > SLOW_SECONDS:
            break
    if loading > computing and loading > STARVING_SECONDS:
        wanted = min(8, workers + 1 + round(loading / max(computing, loading / 8)))
        yield Finding(
            "starving",
            Certainty.LIKELY,
            f"a window takes at least {loading:.2g} s to load and {computing:.2g} s to compute: the device waits for "
            f"{loading / (loading + computing):.0%} of the time",
            where="plan.num_workers",
            evidence=(f"{len(seconds)} windows, {workers} workers",),
            fix=f"plan: {{num_workers: {wanted}}}",
        )


def _seconds_of(
    step: Step, loader: Loader, count: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Return the seconds in which each of the first windows is loaded and computed."""
    taken = []
    with closing(loader.windows(0, count)) as source:
        for _ in range(count):
            start = clock()
            window = next(source)
            loaded = clock()
            step(window)
            taken.append((loaded - start, clock() - loaded))
    return taken


def _keys(data: Any) -> list[Any]:
    """Return what tells examples apart: the model's inputs, not the labels."""
    return [_key(example) for example in _some(data)]


def _some(data: Any) -> list[Any]:
    most = LOOKED if isinstance(data, (list, tuple, Examples)) else LOOKED // 10
    return [data[place] for place in range(min(len(data), most))]


def _key(example: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    args, kwargs = inputs_of(example)
    for name, value in [*enumerate(args), *sorted(kwargs.items())]:
        digest.update(f"{name}:".encode())
        if isinstance(value, Tensor):
            digest.update(str(value.shape).encode() + value.detach().cpu().contiguous().numpy().tobytes())
        else:
            digest.update(repr(value).encode("utf-8", "surrogatepass"))
    return digest.digest()


def _flat(labels: Any) -> list[Any]:
    if isinstance(labels, Tensor):
        labels = labels.flatten().tolist()
    return list(labels) if isinstance(labels, (list, tuple)) else [labels]
