"""Rows on which an export is compared: those that are named, those of the run, or inputs that are drawn where there are none."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, inputs_of
from snugfit.data.bad_rows import BadRow, text_of
from snugfit.data.examples import FILE
from snugfit.data.named_sources import files_of
from snugfit.deliver.export.exported_model import TOKEN_TYPES, ExportedModel
from snugfit.deliver.export.scored import (
    ANSWER_TOKENS,
    ScoredRows,
    answer_tokens,
    greedy,
    inputs_with_answer,
    logits_for,
)
from snugfit.errors import SettingError, UserError
from snugfit.kit.language_models.generation import positions_of

COUNT = 8
"""Rows that are compared."""

_KINDS = ("encoder", "decoder", "encoder-decoder", "pictures", "table", "python")
"""Kinds of models whose rows are put through their forward, one at a time, as they are read."""

_DRAWN_LENGTH = 12
_MOST_TOKENS, _MOST_CHARACTERS = 64, 400
"""Of a text that a model goes on with: a row may be a whole document."""


def score(subject: ExportedModel, rows: str | Path | Sequence[Mapping[str, Any]] | None) -> ScoredRows:
    """Return what the model gives for some rows, of which an export has to give the same.

    Args:
        rows: a file, or rows themselves; without them those of the run, and without a run inputs that are drawn.
    Raises:
        DataError: they cannot be read.
    """
    model = in_float32(subject.model)
    if subject.predictor.use is None or subject.kind not in _KINDS:
        return ScoredRows(model, drawn=f"the task '{subject.task}' has no rows of a known form")
    taken, examples, why = _rows_of(subject, rows)
    if taken:
        scored = _scored(subject, model, taken, examples)
        if scored.inputs:
            return scored
        why = "no row leaves room for an answer among the model's positions"
    inputs = _drawn(subject)
    if not inputs:
        return ScoredRows(model, drawn=f"{why}, and inputs of the task '{subject.task}' are not drawn")
    prompts = [each["input_ids"][0].tolist() for each in inputs] if subject.generates else []
    return _with_outputs(subject, ScoredRows(model, inputs=inputs, prompts=prompts, drawn=why))


def in_float32(model: nn.Module) -> nn.Module:
    """Return the model if its weights are float32, else a copy that has them so."""
    if all(each.dtype == torch.float32 for each in model.parameters() if each.is_floating_point()):
        return model
    return copy.deepcopy(model).float()


def stops_of(subject: ExportedModel) -> tuple[int, ...]:
    """Return the tokens that end an answer."""
    return () if subject.predictor.use is None else subject.predictor.use.stops


def _rows_of(
    subject: ExportedModel, rows: str | Path | Sequence[Mapping[str, Any]] | None
) -> tuple[list[Mapping[str, Any]], Any, str]:
    """Return the rows to compare on with their examples, or why there are none."""
    if rows is not None and not isinstance(rows, (str, Path)):
        given: list[Mapping[str, Any]] = list(rows)[:COUNT]
        return given, subject.predictor.inference.encode(given) if given else [], "no rows were given"
    if rows is not None:
        return *_read(subject, str(rows)), f"{rows} has no rows"
    if stored := _stored_example(subject):
        return stored, subject.predictor.inference.encode(stored), ""
    data = subject.recipe.get("data") or {}
    written = (data.get("validation"), data.get("train"))
    sources = [file for each in written if isinstance(each, (str, list, Mapping)) for file in files_of(each)]
    if not sources or subject.kind == "python":
        return [], [], "no rows of the training are known here"
    for source in sources:
        try:
            return *_read(subject, source), f"{Path(source).name} has no rows"
        except UserError:
            continue
    return [], [], f"{Path(sources[-1]).name} gives no rows to predict for"


def _stored_example(subject: ExportedModel) -> list[Mapping[str, Any]]:
    """Return the rows that a registered model was stored with; none of pictures, whose files are elsewhere, and of other models."""
    if subject.bundle is None or subject.kind in ("pictures", "python"):
        return []
    stored = next((each for each in subject.bundle.parents[:3] if (each / "MLmodel").is_file()), None)
    if stored is None:
        return []
    from mlflow.models import Model

    example = Model.load(str(stored)).load_input_example(str(stored))
    return [] if example is None else list(example.to_dict("records"))[:COUNT]


def _read(subject: ExportedModel, source: str) -> tuple[list[Mapping[str, Any]], Any]:
    """Return the first rows of a file, without those that are faulty, and their examples."""
    from snugfit.data.sources import read_table

    use = subject.predictor.inference
    if use.read is not None:
        read = use.read(source, labelled=False, bad_rows="skip")
        return list(read.rows[:COUNT]), read.examples
    if subject.kind == "python":
        raise SettingError(
            "rows", f"the task '{subject.task}' has no rows in files", "Export in Python, with rows=[…]."
        )
    rows: list[Mapping[str, Any]] = []
    for row in read_table(source, setting="rows", folder=Path.cwd()).rows:
        with suppress(BadRow):  # such as an empty line of a text
            _text(subject, row)
            rows.append(row)
        if len(rows) == COUNT:
            break
    return rows, use.encode(rows)


def _scored(
    subject: ExportedModel, model: nn.Module, rows: list[Mapping[str, Any]], examples: Any
) -> ScoredRows:
    use = subject.predictor.inference
    if subject.generates:
        prompts = [_prompt(examples[place]) for place in range(len(rows))]
        if subject.kind == "decoder" and not subject.meta.get(
            "conversations"
        ):  # a whole document goes on from its beginning as well
            room = max(1, min(_MOST_TOKENS, positions_of(model) - ANSWER_TOKENS))
            prompts = [prompt[:room] for prompt in prompts]
        fitting = [place for place, prompt in enumerate(prompts) if answer_tokens(model, prompt) > 0]
        rows, prompts = [rows[place] for place in fitting], [prompts[place] for place in fitting]
        conversations = _conversations(subject, rows)
        tokenizer = subject.predictor.tokenizer
        written = [_written(tokenizer, each) for each in conversations]
        plain = [] if subject.meta.get("conversations") else rows
        texts = written or [_text(subject, row)[:_MOST_CHARACTERS] for row in plain]
        tokens = [list(tokenizer(each, add_special_tokens=False)["input_ids"]) for each in texts]  # type: ignore[misc]
        scored = ScoredRows(
            model,
            rows,
            prompts=prompts,
            conversations=conversations,
            written=written,
            texts=list(zip(texts, tokens, strict=True)),
        )
        return _with_outputs(subject, scored)
    inputs = [_inputs(model, use.collate([examples[place]])) for place in range(len(rows))]
    framed: list[tuple[str | list[str], list[int]]] = []
    if subject.labels_texts:
        ids = [each["input_ids"][0].tolist() for each in inputs]
        framed = [(_texts(subject, row), own) for row, own in zip(rows, ids, strict=True)]
    pictures = (
        [str(examples.rows[place][FILE]) for place in range(len(rows))]
        if subject.kind == "pictures"
        and all(isinstance(examples.rows[at][FILE], (str, Path)) for at in range(len(rows)))
        else []
    )
    return _with_outputs(subject, ScoredRows(model, rows, inputs=inputs, texts=framed, pictures=pictures))


def _with_outputs(subject: ExportedModel, scored: ScoredRows) -> ScoredRows:
    """Return the same with logits, and with answers where the model gives any: their logits are compared too."""
    inputs, answers, stops = scored.inputs, scored.answers, stops_of(subject)
    if subject.generates:
        answers = greedy(scored.model, scored.prompts, stops)
        inputs = [
            inputs_with_answer(scored.model, prompt, each.tokens)
            for prompt, each in zip(scored.prompts, answers, strict=True)
        ]
    return replace(
        scored, inputs=inputs, logits=logits_for(scored.model, inputs), answers=answers, stops=stops
    )


def _prompt(example: Any) -> list[int]:
    """Return the tokens that ask for an answer, also where they have their mask beside them."""
    return list(example["input_ids"] if isinstance(example, Mapping) else example)


def _inputs(model: nn.Module, data: Any) -> dict[str, Tensor]:
    """Return the arguments of a forward by their names."""
    import inspect

    args, kwargs = inputs_of(Batch.of(data).data)
    names = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _conversations(subject: ExportedModel, rows: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the messages of rows, where a chat template writes them."""
    if not subject.meta.get("conversations") or not subject.predictor.tokenizer.chat_template:  # type: ignore[union-attr]
        return []
    from snugfit.data.texts.conversations import FORMATS, MESSAGES, conversation_of
    from snugfit.data.texts.preferences import conversation_with

    meta = subject.meta
    form, text = meta["conversations"], tuple(meta.get("text_columns") or ("text",))
    completion = meta.get("completion_column") or "completion"
    read = [
        conversation_of(
            row, MESSAGES if MESSAGES in row else form, text=text, completion=completion, answered=False
        )
        if MESSAGES in row or form in FORMATS
        else conversation_with(row, text, None)  # of preferences
        for row in rows
    ]
    return [[dict(message) for message in each.messages] for each in read if not each.tools]


def _written(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def _text(subject: ExportedModel, row: Mapping[str, Any]) -> str:
    return str(text_of(row, subject.meta.get("text_columns") or ["text"]))


def _texts(subject: ExportedModel, row: Mapping[str, Any]) -> str | list[str]:
    """Return the text of a row, or both texts of a pair."""
    text = _text(subject, row)
    return text if subject.pair is None else [text, str(text_of(row, [subject.pair]))]


def _drawn(subject: ExportedModel) -> list[dict[str, Tensor]]:
    """Return inputs that are drawn from a seed; none for a kind of model whose inputs have no known form."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = subject.predictor.tokenizer
    if subject.reads_tokens and tokenizer is not None:
        special = set(tokenizer.all_special_ids)
        usual = torch.tensor([each for each in range(len(tokenizer)) if each not in special])
        ids = [
            usual[torch.randint(len(usual), (1, _DRAWN_LENGTH + place), generator=generator)]
            for place in range(COUNT)
        ]
        inputs = [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids]
        if subject.reads_token_types:
            inputs = [{**each, TOKEN_TYPES: _drawn_types(subject, each["input_ids"])} for each in inputs]
        return inputs
    if subject.kind == "pictures":
        from snugfit.data.pictures.picture_format import PictureFormat

        shape = PictureFormat.of(subject.meta["pictures"]).shape
        return [{"pixel_values": torch.randn(1, *shape, generator=generator)} for _ in range(COUNT)]
    return []


def _drawn_types(subject: ExportedModel, ids: Tensor) -> Tensor:
    """Return token types of drawn tokens: the second half is the second text where the model reads pairs."""
    types = torch.zeros_like(ids)
    if subject.pair is not None:
        types[:, ids.shape[1] // 2 :] = 1
    return types
