"""Answers of a language model that a run has trained: to a prompt, to a conversation, or to each row of a file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import Fault, settle
from snugfit.data.files.file_kinds import SOURCE_LINE
from snugfit.deliver.generation_memory import in_numbers, within_memory
from snugfit.deliver.model_registry import resolve_model
from snugfit.deliver.predictor import BATCH_ROWS, Predictor, load_predictor
from snugfit.errors import DataError, ModelError
from snugfit.kit.language_models.generation import Generation, positions_of, writes_another_text
from snugfit.system.disk_files import whole_file

if TYPE_CHECKING:
    from snugfit.data.files.file_rows import FileRows
    from snugfit.planner.generation import GenerationPlan


def load_generator(
    source: str | Path,
    generation: Generation,
    *,
    streamer: Callable[[Any], Any] | None = None,
    numbers: str | None = None,
    quantize: str | None = None,
    uri: str | None = None,
    allow_code: bool = False,
) -> Predictor:
    """Load a language model that answers, on the host; `ready_for` brings it to its device.

    Args:
        source: the folder of a run or of a model, or the address of a registered one, in the tracker at `uri`.
        streamer: makes, given the tokenizer, what is told each token of a single answer.
        numbers, quantize: as of `in_numbers`.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: it is damaged, or of a task that generates nothing.
    """
    predictor = load_predictor(resolve_model(source, uri=uri), device="cpu", allow_code=allow_code)
    use = predictor.use
    if use is None or use.with_generation is None:
        raise ModelError(
            source,
            f"holds a model for the task '{predictor.meta.get('task')}', which generates nothing",
            f"Predict with it: snugfit predict {shlex.quote(str(source))} ROWS -o predictions.csv",
        )
    listener = None if streamer is None else streamer(predictor.tokenizer)
    predictor = in_numbers(predictor, numbers, quantize)
    return dataclasses.replace(predictor, use=use.with_generation(generation, listener))


def ready_for(
    predictor: Predictor, messages: Sequence[Mapping[str, Any]], memory: int | None = None
) -> tuple[Predictor, GenerationPlan | None]:
    """Return the predictor on its device, ready to answer a conversation within so many bytes, and the plan of that.

    Raises:
        BadRow: its chat template refuses the conversation.
        DataError: the conversation fills the model's positions.
        SettingError: the memory does not hold the answer.
    """
    prompt = predictor.inference.encode([_row(predictor, messages)])[0]
    return within_memory(predictor, [predictor.inference.length(prompt)], memory)


def answer_to(predictor: Predictor, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the answer to a conversation; a model that goes on with texts is given the last message alone.

    Raises:
        BadRow: its chat template refuses the conversation.
    """
    (prediction,) = predictor.predict([_row(predictor, messages)])
    return str(prediction[predictor.inference.columns[0]])


def _row(predictor: Predictor, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = predictor.meta.get("text_columns") or ["text"]
    conversation = predictor.meta.get("conversations") and getattr(predictor.tokenizer, "chat_template", None)
    text = dict.fromkeys(columns, "") | {columns[0]: messages[-1]["content"]}
    return {"messages": list(messages)} if conversation else text


def generate_file(
    predictor: Predictor,
    data: str,
    output: Path,
    *,
    memory: int | None = None,
    bad_rows: str = "fail",
    tell: Callable[[str], None] = lambda _: None,
    announce: Callable[[GenerationPlan], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the rows of `data` with the column of the answer, and `source_line`, the row's line in `data`, as JSON Lines.

    Args:
        memory: bytes that the process may take of its device; by default what is free.
        tell: is told how far it is.
        announce: is told what it will take, before the first answer.
    Returns:
        Counts: rows, those whose answer is empty where there are any, and rows left out by reason.
    Raises:
        DataError: the data cannot be used, or has a column of one of those names; the output cannot be written.
        SettingError: the memory does not hold a single answer.
    """
    read = predictor.inference.read
    if read is None:
        raise ModelError(
            "model", f"of the task '{predictor.meta['task']}' has no rows in files", "Give a prompt."
        )
    rows = read(data, labelled=False, bad_rows=bad_rows)
    column = predictor.inference.columns[0]
    if taken := {column, SOURCE_LINE} & set(rows.columns):
        raise DataError(
            data, f"has a column '{min(taken)}' already", "Rename it: answers go under that name."
        )
    lengths = [predictor.inference.length(rows.examples[place]) for place in range(len(rows.examples))]
    places, skipped = _answerable(predictor, rows, lengths, bad_rows)
    predictor, plan = within_memory(predictor, [lengths[place] for place in places], memory)
    if plan is not None:
        announce(plan)
    empty = 0
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as draft, draft.open("w", encoding="utf-8") as file:
            for start in range(0, len(places), BATCH_ROWS):
                part = places[start : start + BATCH_ROWS]
                tell(f"row {start + 1:,} of {len(places):,} …")
                predictions = predictor.predict_examples([rows.examples[place] for place in part], part)
                for place, prediction in zip(part, predictions, strict=True):
                    line = {**rows.rows[place], **prediction, SOURCE_LINE: rows.lines[place]}
                    empty += not prediction[column]
                    file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    except OSError as error:
        raise DataError(output, f"cannot be written: {error.strerror}", "Choose another output.") from error
    counts = {"rows": len(places), **({"empty answers": empty} if empty else {})}
    return {"output": str(output), **counts, "skipped": {**rows.report.skipped, **skipped}}


def _answerable(
    predictor: Predictor, rows: FileRows, lengths: Sequence[int], bad_rows: str
) -> tuple[list[int], dict[str, int]]:
    """Return the places of the rows whose prompts leave the model a position for an answer, and how many others are left out by reason.

    Raises:
        DataError: there are others, and rows that cannot be used are to fail; or there are no others.
    """
    if writes_another_text(predictor.model):
        return list(range(len(lengths))), {}
    positions = positions_of(predictor.model)
    places = [place for place, length in enumerate(lengths) if length < positions]
    source = next(iter(rows.fingerprints), "rows")
    faults = [
        Fault(
            source,
            rows.lines[place],
            "prompt too long",
            f"the prompt has {length:,} tokens, and the model reads {positions:,} with its answer",
        )
        for place, length in enumerate(lengths)
        if length >= positions
    ]
    return places, settle(faults, bad_rows if places else "fail")
