"""Tags of words and labelled spans in texts, such as names of people and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.texts.tags import scheme_of
from snugfit.tasks.common.entities import entity_metrics, most_likely_tags, predictions_of
from snugfit.tasks.common.texts import ROWS, material_of, row_settings, task_of_texts
from snugfit.tasks.inference import Inference, Row
from snugfit.tasks.recipe_model import load_from
from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of, length_of_rows
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_WORDS = ("words", "tokens", "text", "sentence")
TAGS = ("tags", "ner_tags", "pos_tags", "spans", "entities", "annotations", "labels", "label", "ner")
_MOST = 0.9
_SAMPLE = """\
{"words": ["Ada", "Lovelace", "was", "born", "in", "London", "."], "tags": ["B-person", "I-person", "O", "O", "O", "B-place", "O"]}
{"words": ["Alan", "Turing", "studied", "in", "Cambridge", "."], "tags": ["B-person", "I-person", "O", "O", "B-place", "O"]}
{"words": ["Marie", "Curie", "worked", "in", "Paris", "."], "tags": ["B-person", "I-person", "O", "O", "B-place", "O"]}
{"words": ["In", "Vienna", "lived", "Lise", "Meitner", "."], "tags": ["O", "B-place", "O", "B-person", "I-person", "O"]}
{"words": ["Emmy", "Noether", "taught", "in", "Göttingen", "."], "tags": ["B-person", "I-person", "O", "O", "B-place", "O"]}
{"words": ["Nobody", "came", "by", "train", "."], "tags": ["O", "O", "O", "O", "O"]}
{"words": ["Niels", "Bohr", "met", "Einstein", "in", "Copenhagen", "."], "tags": ["B-person", "I-person", "O", "B-person", "O", "B-place", "O"]}
{"words": ["Grace", "Hopper", "flew", "to", "New", "York", "."], "tags": ["B-person", "I-person", "O", "O", "B-place", "I-place", "O"]}
"""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.tagged_texts import TagSettings, load_tagged
    from snugfit.models.huggingface import TOKENS, load_classifier
    from snugfit.models.tokenizer import check_length, load_tokenizer

    rows = recipe.data
    settings = TagSettings(label=rows.label, scheme=rows.scheme, classes=rows.classes, **row_settings(recipe))
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_tagged(settings, tokenizer, folder=recipe.folder)
    load = partial(
        load_classifier, labels=data.tags, of=TOKENS, tokenizer=tokenizer, folder=recipe.folder, empty=empty
    )
    loaded = load_from(recipe, load, keep)
    check_length(loaded.model, recipe.data.max_length)
    material = material_of(recipe, loaded, data, load, metrics=entity_metrics(data.tags, data.scheme))
    meta = {
        "labels": list(data.tags),
        "scheme": data.scheme,
        "form": data.form,
        "label_column": recipe.data.label,
    }
    return task_of_texts(recipe, material, loaded, data, tokenizer, meta=meta, example_rows=data.example_rows)


def _load_empty(recipe: TaskRecipe, name: str) -> nn.Module:
    from snugfit.models.huggingface import TOKENS, load_classifier

    model: nn.Module = load_classifier(name, ("0", "1"), of=TOKENS, folder=recipe.folder, empty=True).model
    return model


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.core.losses import cross_entropy
    from snugfit.data.files.file_rows import FileRows
    from snugfit.data.texts.tagged_rows import tagged_text
    from snugfit.data.texts.tagged_texts import Reader, RowWindows, load_tagged_rows
    from snugfit.data.texts.tokens import padding_for

    names, scheme, form = tuple(meta["labels"]), meta["scheme"], meta["form"]
    (column,) = meta["text_columns"]
    reader, padded, with_tags = Reader(tokenizer, meta["max_length"]), padding_for(tokenizer), form != "spans"

    def encoded(rows: Sequence[Row]) -> Sequence[RowWindows]:
        return reader.rows([tagged_text(row, column, None, form)[1] for row in rows])

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_tagged_rows(
            source,
            reader,
            text=column,
            form=form,
            label=meta["label_column"] if labelled else None,
            tags=names,
            scheme=scheme,
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    def collate(rows: Sequence[RowWindows]) -> Any:
        return padded([window.example for row in rows for window in row.windows])

    return Inference(
        encode=encoded,
        collate=collate,
        decode=partial(predictions_of, names, scheme, with_tags),
        columns=("prediction", "predicted_tags") if with_tags else ("prediction",),
        length=lambda row: row.tokens,
        run=most_likely_tags,
        read=read,
        counted="spans",
        loss=cross_entropy,
        metrics=CARD.metrics,
        own_metrics=entity_metrics(names, scheme),
    )


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.texts.tagged_rows import read_tagged
    from snugfit.data.texts.tagged_texts import check_one_column
    from snugfit.data.usable_rows import Part

    check_one_column(recipe.data.text)
    (column,), label = recipe.data.text, recipe.data.label
    read = read_tagged(recipe.data.rows, "data.train", column, label, folder=recipe.folder)
    texts = [each.text for each in read.texts]
    classes = recipe.data.classes or read.tags
    return Part(read.table, read.row_indices, texts, [], read.faults, classes=classes)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    texts, labels = columns_of(data.get("text") or _WORDS), columns_of(data.get("label") or TAGS)
    for text in (name for name in texts if name in source.columns):
        for label in (name for name in labels if name in source.columns and name != text):
            if what := _labelled(source, text, label):
                return Recognition(
                    data={
                        "text": text,
                        "label": label,
                        "max_length": length_of_rows([_characters(row.get(text)) for row in source.rows]),
                    },
                    reason=f"{counted(len(source.rows), 'row')}, {what} in column '{label}'",
                    score=0.95,
                    examples=len(source.rows),
                )
    return None


def _labelled(rows: Rows, text: str, label: str) -> str:
    """Return what labels a column of texts or words, in words; nothing where none does."""
    pairs: list[tuple[Any, Any]] = [(row.get(text), row.get(label)) for row in rows.rows if row.get(label)]
    if listed := _most_of(pairs, [each for each in pairs if _are(each, list, list)]):
        alike = _most_of(listed, [each for each in listed if len(each[0]) == len(each[1])])
        return "a tag for each word" if alike and not isinstance(listed[0][1][0], (list, dict)) else ""
    if spans := _most_of(pairs, [each for each in pairs if _are(each, str, list)]):
        return "spans of characters" if isinstance(spans[0][1][0], (list, dict)) else ""
    split = [(each[0].split(), each[1].split()) for each in pairs if _are(each, str, str)]
    written = _most_of(pairs, [each for each in split if len(each[0]) == len(each[1])])
    return "a tag for each word" if scheme_of({tag for _, tags in written for tag in tags}) != "plain" else ""


def _are(pair: tuple[Any, Any], of_text: type, of_label: type) -> bool:
    return isinstance(pair[0], of_text) and isinstance(pair[1], of_label)


def _most_of(rows: Sequence[Any], fitting: Sequence[Any]) -> Sequence[Any]:
    """Return those that fit where they are nearly all rows; the rest are faults then, which the run names."""
    return fitting if len(fitting) >= _MOST * len(rows) else ()


def _characters(value: Any) -> int:
    return sum(len(str(word)) + 1 for word in value) if isinstance(value, list) else len(str(value or ""))


CARD = Card(
    name="token-classification",
    summary="Tell which spans of a text are names or terms of which kind.",
    loss="cross_entropy",
    metrics=("entity_f1", "accuracy"),
    settings=(*ROWS, "label", "scheme", "classes"),
    columns=("text", "label"),
    load=_load,
    load_empty=_load_empty,
    inference=_inference,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a file of rows with lists of words and of their tags, or with texts and spans of characters",
    new_rows="NEW.jsonl",
    sample=(".jsonl", _SAMPLE),
    plain_rows=True,
    pipeline="token-classification",
)
