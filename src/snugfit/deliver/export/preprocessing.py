"""The files beside an export that say how its inputs are made and its outputs are read: tokenizer, processor, columns, labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.scored import ScoredRows
from snugfit.models.folders import PROCESSOR
from snugfit.models.tokenizer import save_tokenizer

LABELS, TABLE, TABLE_INPUTS = "labels.json", "table.json", "table_inputs.py"


def write_preprocessing(
    subject: ExportedModel, folder: Path, scored: ScoredRows, *, labels: bool
) -> list[str]:
    """Write what others need to make the inputs as they were scored, and return sentences about it.

    Args:
        labels: whether a file names the classes, as nothing else in the folder does.
    """
    sentences = []
    tokenizer = subject.predictor.tokenizer
    if tokenizer is not None:
        cut = bool(subject.meta.get("labels")) or subject.labels_texts
        save_tokenizer(tokenizer, folder, subject.meta.get("max_length") if cut else None)
    columns = subject.meta.get("text_columns") or ()
    if len(columns) > 1 and not subject.answers_prompts:
        names = " and ".join(f"`{each}`" for each in columns)
        sentences.append(f"A text is what stands in {names}, in that order, joined by a line break.")
    if subject.generates:
        write_generation_config(subject, folder, scored)
    if subject.kind == "pictures":
        from snugfit.data.pictures.picture_format import PictureFormat

        _write(folder / PROCESSOR, PictureFormat.of(subject.meta["pictures"]).processor())
    if subject.kind == "sounds":
        _write(folder / PROCESSOR, subject.meta["sounds"]["extractor"])
    if subject.kind == "table":
        _write(folder / TABLE, subject.meta["table"])
        shutil.copy(Path(__file__).with_name(TABLE_INPUTS), folder)
        sentences.append(
            f"`{TABLE}` says how cells become numbers and categories: medians, scales and codes. `encode` in `{TABLE_INPUTS}` makes a graph's inputs of rows, with numpy alone."
        )
    if labels and subject.meta.get("labels"):
        _write(folder / LABELS, list(subject.meta["labels"]))
        sentences.append(f"`{LABELS}` names the classes in the order of the logits.")
    return sentences


def write_generation_config(subject: ExportedModel, folder: Path, scored: ScoredRows) -> None:
    """Write how others generate: up to the tokens that ended the answers that were scored."""
    from transformers import GenerationConfig

    tokenizer: Any = subject.predictor.tokenizer
    own = getattr(subject.model, "generation_config", None)
    values = {} if own is None else {k: v for k, v in own.to_dict().items() if v is not None}
    values.pop("_from_model_config", None)  # it would be made from the model's configuration again
    values |= {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": list(scored.stops) or None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    GenerationConfig.from_dict(values).save_pretrained(folder)


def _write(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
