"""Reading an export back in a process of its own, and judging what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snugfit.data.files.shards import plain_file
from snugfit.data.tables.table_format import TableFormat
from snugfit.deliver.export.comparison import EXACT, Comparison, differences
from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.scored import (
    Answer,
    ScoredRows,
    answer_tokens,
    near_tie,
)
from snugfit.errors import ModelError

_READER = Path(__file__).with_name("reader.py")


@dataclass(frozen=True)
class Reading:
    """The outputs that another library gives for the rows; `whole` are its logits with a quantised base written whole."""

    values: Mapping[str, Any]
    logits: list[Tensor]
    pixels: list[Tensor]
    whole: list[Tensor]

    @property
    def library(self) -> str:
        return str(self.values["library"])

    @property
    def answers(self) -> list[Answer]:
        return [Answer(list(each["tokens"]), bool(each["ended"])) for each in self.values.get("answers", ())]


def read(reader: str, folder: Path, scored: ScoredRows, request: Mapping[str, Any]) -> Reading:
    """Return what a library gives for the rows, in a process that imports nothing else of ours.

    Raises:
        ModelError: it cannot read the export.
    """
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory(prefix="snugfit-read-") as temporary:
        place = Path(temporary)
        asked = {"reader": reader, "folder": str(folder), "rows": len(scored.inputs), **request}
        if "pictures" in asked:
            asked["pictures"] = [
                plain_file(path, place / f"{row}") for row, path in enumerate(asked["pictures"])
            ]
        (place / "request.json").write_text(json.dumps(asked), encoding="utf-8")
        inputs = {
            f"{row}.{name}": tensor.contiguous().clone()
            for row, each in enumerate(scored.inputs)
            for name, tensor in each.items()
        }
        save_file(inputs, place / "inputs.safetensors")
        run_reader(place)
        values = json.loads((place / "reading.json").read_text(encoding="utf-8"))
        tensors = load_file(place / "outputs.safetensors")
        logits, pixels, whole = (
            [tensors[f"{group}.{row}"] for row in range(len(scored.inputs)) if f"{group}.{row}" in tensors]
            for group in ("logits", "pixels", "whole")
        )
    return Reading(values, logits, pixels, whole)


def run_reader(place: Path) -> None:
    """Read what the request in a folder asks for, in a process of its own.

    Raises:
        ModelError: the library cannot read the export.
    """
    done = subprocess.run(
        [sys.executable, "-P", str(_READER), str(place)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reader = json.loads((place / "request.json").read_text(encoding="utf-8"))["reader"]
        raise ModelError(
            "--to",
            f"{reader} cannot read what was written: {lines[-1] if lines else f'it ended with {done.returncode}'}",
            "Nothing was delivered. Take another format.",
        )


def prompts_of(scored: ScoredRows) -> dict[str, Any]:
    """Return the part of a request that asks for greedy answers."""
    return {
        "prompts": scored.prompts,
        "most": [answer_tokens(scored.model, prompt) for prompt in scored.prompts],
        "stops": list(scored.stops),
    }


def cells_of(subject: ExportedModel, scored: ScoredRows) -> dict[str, Any]:
    """Return the part of a request that has inputs made of a table's rows; none where these are drawn, or no table's."""
    if subject.kind != "table" or len(scored.rows) != len(scored.inputs):
        return {}
    table = TableFormat.of(subject.meta["table"])
    return {"cells": [table.plain(row) for row in scored.rows]}


def judged(
    reading: Reading, scored: ScoredRows, *, whole: list[Tensor] | None = None, slack: float = 0.0
) -> Comparison:
    """Return how far the logits and the answers of a reading are from what was scored.

    Args:
        whole: logits of the model with weights rounded as in the file, which the reading has to give; how far they are from what was
            scored is told, and no fault. None: weights were not rounded.
        slack: of the difference, where the other library computes in less than float32.
    """
    difference, largest = differences(scored.logits, reading.logits)
    unexplained, rounding = difference, None
    if whole is not None:
        unexplained = differences(whole, reading.logits)[0]
        rounding = differences(scored.logits, whole)[0]
    problem, bound = None, EXACT + slack
    if not unexplained <= bound:
        besides = "" if whole is None else " beside the rounding of its weights"
        problem = f"its logits differ by {unexplained:.3g} of their spread{besides}, more than {bound:.3g}"
    answers, different = answers_of(reading, scored, 2 * largest)
    checked, missed = texts_of(reading, scored)
    return Comparison(
        reading.library,
        len(scored.inputs),
        difference,
        largest,
        rounding,
        answers,
        checked,
        problem or different or missed,
    )


def answers_of(
    reading: Reading, scored: ScoredRows, within: float
) -> tuple[tuple[int, int] | None, str | None]:
    """Return how many greedy answers are equal, and what is wrong with the first that is not.

    Args:
        within: two tokens whose logits are nearer than that are as good as equal, and an answer may go on with either.
    """
    if not reading.answers or not scored.answers:
        return None, None
    equal, problem = 0, None
    pairs = zip(scored.prompts, scored.answers, reading.answers, strict=True)
    for row, (prompt, own, other) in enumerate(pairs, 1):
        if own == other:
            equal += 1
            continue
        stop = scored.stops[0] if scored.stops else -1
        if problem is None and not near_tie(scored.model, prompt, own, other, within, stop):
            problem = f"its greedy answer to row {row} is another: {_parting(own, other)}"
    return (equal, len(scored.answers)), problem


def _parting(own: Answer, other: Answer) -> str:
    """Return where two answers part, in words."""
    pairs = zip(own.tokens, other.tokens, strict=False)
    place = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
    if place is not None:
        return f"token {place + 1} is {other.tokens[place]} where {own.tokens[place]} was scored"
    late = "does not stop" if own.ended and len(own.tokens) <= len(other.tokens) else "stops"
    count = len(own.tokens) if late == "does not stop" else len(other.tokens)
    return f"it {late} after {count} tokens, where the scored model {'did' if late == 'does not stop' else 'did not'}"


def texts_of(reading: Reading, scored: ScoredRows) -> tuple[tuple[str, ...], str | None]:
    """Return what of texts is equal, in words, and what is not."""
    checked = []
    values = reading.values
    if values.get("tokens") and scored.texts:
        for row, (given, (_, own)) in enumerate(zip(values["tokens"], scored.texts, strict=True), 1):
            if list(given) != list(own):
                return (), f"it tokenises row {row} otherwise: {given[:8]} … where {own[:8]} … were scored"
        checked.append("tokens")
    if values.get("written") and scored.written:
        for row, (text, own_text) in enumerate(zip(values["written"], scored.written, strict=True), 1):
            if text != own_text:
                return (
                    (),
                    f"its chat template writes row {row} as {text[:60]!r} where {own_text[:60]!r} was scored",
                )
        checked.append("chat template")
    if encoded := values.get("encoded"):
        if not all(encoded):
            return (), f"table_inputs.py makes another input of row {encoded.index(False) + 1}"
        checked.append("inputs of rows")
    return tuple(checked), None


def stop_problem(given: Any, stops: Sequence[int]) -> str | None:
    """Return what is wrong with the stop tokens that a file names; None where they are those that were scored."""
    named = [given] if isinstance(given, int) else list(given or ())
    if set(named) == set(stops):
        return None
    return f"its stop tokens are {sorted(named)} where {sorted(stops)} ended the answers that were scored"


def judged_quantised(reading: Reading, scored: ScoredRows, *, chooses_one: bool) -> Comparison:
    """Return how far a quantised model is from what was scored; that it is some way off was asked for, and no fault.

    Args:
        chooses_one: whether its logits are of a choice of one among several, such as the next token.
    """
    difference, largest = differences(scored.logits, reading.logits)
    checked, missed = texts_of(reading, scored)
    equal = sum(own == other for own, other in zip(scored.answers, reading.answers, strict=True))
    finite = all(bool(each.isfinite().all()) for each in reading.logits)
    return Comparison(
        reading.library,
        len(scored.inputs),
        difference,
        largest,
        None,
        (equal, len(scored.answers)) if scored.answers else None,
        checked,
        missed or (None if finite else "its logits are not finite"),
        lost=divergence(scored.logits, reading.logits) if scored.logits and chooses_one else None,
    )


def divergence(scored: list[Tensor], given: list[Tensor]) -> float:
    """Return the mean Kullback-Leibler divergence of what is given from what was scored, in nats a token or a row.

    >>> divergence([torch.zeros(1, 2)], [torch.zeros(1, 2)])
    0.0
    """
    own = torch.cat([each.flatten(0, -2) for each in scored]).double().log_softmax(-1)
    other = torch.cat([each.flatten(0, -2) for each in given]).double().log_softmax(-1)
    return float((own.exp() * (own - other)).sum(-1).mean())
