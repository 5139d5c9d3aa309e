"""Answers of a language model that a run has trained: to a prompt, to a conversation, or to each row of a file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.deliver.model_registry import resolve_model
from snugfit.deliver.predict import BATCH_ROWS, Predictor, load_predictor
from snugfit.errors import DataError, ModelError
from snugfit.kit.generation import Generation

LINE = "source_line"


def load_generator(
    source: str | Path,
    generation: Generation,
    *,
    streamer: Callable[[Any], Any] | None = None,
    uri: str | None = None,
    allow_code: bool = False,
) -> Predictor:
    """Load a language model that answers.

    Args:
        source: the folder of a run or of a model, or the address of a registered one, in the tracker at `uri`.
        streamer: makes, given the tokenizer, what is told each token of a single answer.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: it is damaged, or of a task that generates nothing.
    """
    predictor = load_predictor(resolve_model(source, uri=uri), allow_code=allow_code)
    use = predictor.use
    if use is None or use.with_generation is None:
        raise ModelError(
            source,
            f"holds a model for the task '{predictor.meta.get('task')}', which generates nothing",
            f"Predict with it: snugfit predict {source} ROWS -o predictions.csv",
        )
    listener = None if streamer is None else streamer(predictor.tokenizer)
    return dataclasses.replace(predictor, use=use.with_generation(generation, listener))


def answer_to(predictor: Predictor, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the answer to a conversation; a model that goes on with texts is given the last message alone.

    Raises:
        BadRow: its chat template refuses the conversation.
    """
    columns = predictor.meta.get("text_columns") or ["text"]
    conversation = predictor.meta.get("conversations") and getattr(predictor.tokenizer, "chat_template", None)
    text = dict.fromkeys(columns, "") | {columns[0]: messages[-1]["content"]}
    (prediction,) = predictor.predict([{"messages": list(messages)} if conversation else text])
    return str(prediction[predictor.inference.columns[0]])


def generate_file(
    predictor: Predictor,
    data: str,
    output: Path,
    *,
    bad_rows: str = "fail",
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the rows of `data` with the column of the answer, and `source_line`, the row's line in `data`, as JSON Lines.

    Args:
        tell: is told how far it is.
    Returns:
        Counts: rows, those whose answer is empty where there are any, and rows left out by reason.
    Raises:
        DataError: the data cannot be used, or has a column of one of those names; the output cannot be written.
    """
    read = predictor.inference.read
    if read is None:
        raise ModelError(
            "model", f"of the task '{predictor.meta['task']}' has no rows in files", "Give a prompt."
        )
    rows = read(data, labelled=False, bad_rows=bad_rows)
    column = predictor.inference.columns[0]
    if taken := {column, LINE} & set(rows.columns):
        raise DataError(
            data, f"has a column '{min(taken)}' already", "Rename it: answers go under that name."
        )
    temporary, empty = output.with_name(f".{output.name}.part"), 0
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for start in range(0, len(rows.examples), BATCH_ROWS):
                places = range(start, min(start + BATCH_ROWS, len(rows.examples)))
                tell(f"row {start + 1:,} of {len(rows.examples):,} …")
                predictions = predictor.predict_examples([rows.examples[place] for place in places], places)
                for place, prediction in zip(places, predictions, strict=True):
                    line = {**rows.rows[place], **prediction, LINE: rows.lines[place]}
                    empty += not prediction[column]
                    file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        os.replace(temporary, output)
    except OSError as error:
        raise DataError(output, f"cannot be written: {error.strerror}", "Choose another output.") from error
    counts = {"rows": len(rows.examples), **({"empty answers": empty} if empty else {})}
    return {"output": str(output), **counts, "skipped": dict(rows.report.skipped)}
