"""A folder that transformers loads by itself: weights with adapters merged, tokenizer and chat template, stop tokens, processor."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugfit.deliver.export.comparison import Comparison
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import ExportedModel, check_of_transformers, copy_adapter
from snugfit.deliver.export.numbers import BF16, FP32, dtype_of, rounding_to
from snugfit.deliver.export.preprocessing import write_preprocessing
from snugfit.deliver.export.quantization import QUANTIZATIONS, check_widths, quantization_settings
from snugfit.deliver.export.read_back import Reading, judged, judged_quantised, prompts_of, read, stop_problem
from snugfit.deliver.export.scored import ScoredRows, rounded_logits
from snugfit.deliver.export.usage import asked_usage, pipeline_usage
from snugfit.models.adapter_bundle import ADAPTER
from snugfit.models.hub import quiet_transformers

_AUTO = {
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM",
    "AutoModelForMaskedLM": "MASKED_LM",
    "AutoModelForSequenceClassification": "SEQUENCE_CLASSIFICATION",
    "AutoModelForTokenClassification": "TOKEN_CLASSIFICATION",
    "AutoModelForImageClassification": "IMAGE_CLASSIFICATION",
}
"""Classes of transformers that load a model by its configuration, and the part of the name of the table in which its classes are."""

_GENERATION = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = {inputs}
(tokens,) = model.generate(**inputs, max_new_tokens=256)
print(tokenizer.decode(tokens[inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""
_WRITING = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer({text}, truncation=True, max_length={length}, return_tensors="pt")
print(tokenizer.decode(model.generate(inputs["input_ids"])[0], skip_special_tokens=True))
"""


def _check(subject: ExportedModel, _choice: ExportOptions) -> None:
    check_of_transformers(subject, "hf")


def _write(subject: ExportedModel, folder: Path, choice: ExportOptions, scored: ScoredRows) -> Written:
    model: Any = subject.model
    dtype = dtype_of(choice.numbers)
    if any(each.dtype != dtype for each in subject.model.parameters() if each.is_floating_point()):
        model = copy.deepcopy(subject.model).to(dtype)
    with quiet_transformers():
        model.save_pretrained(folder)
    notes = write_preprocessing(subject, folder, scored, labels=False)
    if choice.quantize is not None:
        _quantise(subject, folder, choice.quantize)
        notes.append(f"The merged weights were quantised anew, to {choice.quantize} by bitsandbytes.")
    if subject.bundle is not None and (subject.bundle / ADAPTER).is_dir():
        copy_adapter(subject, folder / ADAPTER)
        notes.append(
            f"The weights have their adapter merged, into the values that the base computes with; the adapter alone is in `{ADAPTER}/`, "
            "in peft's format, for the base as it was trained on."
        )
    return Written(usage=_usage(subject, scored), notes=notes, header={"library_name": "transformers"})


def _usage(subject: ExportedModel, scored: ScoredRows) -> str:
    if subject.kind == "encoder-decoder":
        text = json.dumps(f"{subject.meta.get('prefix') or ''}a text", ensure_ascii=False)
        return _WRITING.replace("{text}", text).replace("{length}", str(subject.meta["max_length"]))
    if subject.generates:
        return _GENERATION.replace("{inputs}", asked_usage(subject, "pt", chat=bool(scored.conversations)))
    return pipeline_usage(subject)


def auto_class(subject: ExportedModel) -> str:
    """Return the class of transformers that loads the model by its configuration; its own where none does."""
    from transformers.models.auto import modeling_auto

    own = type(subject.model).__name__
    for name, table in _AUTO.items():
        if own in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").values():
            return name
    return own


def _quantise(subject: ExportedModel, folder: Path, quantize: str) -> None:
    """Put the weights of a folder into fewer bits, by transformers and bitsandbytes."""
    import transformers

    check_widths(subject.model, quantize)
    whole = folder / "whole"
    whole.mkdir()
    for name in ("config.json", *[path.name for path in folder.glob("model*")]):
        shutil.move(folder / name, whole / name)
    with quiet_transformers():
        model = getattr(transformers, auto_class(subject)).from_pretrained(
            whole,
            quantization_config=transformers.BitsAndBytesConfig(
                **quantization_settings(quantize, subject.model)
            ),
            dtype=torch.float32,
            local_files_only=True,
        )
        generation = (folder / "generation_config.json").read_bytes() if subject.generates else None
        model.save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").write_bytes(generation)
    shutil.rmtree(whole)


def _load(subject: ExportedModel, folder: Path) -> nn.Module:
    import transformers

    with quiet_transformers():
        model: nn.Module = getattr(transformers, auto_class(subject)).from_pretrained(
            folder, local_files_only=True
        )
    return model.eval()


def request_of(subject: ExportedModel, scored: ScoredRows) -> dict[str, Any]:
    """Return what transformers is asked to give again."""
    request = {"auto": auto_class(subject), **prompts_of(scored)}
    request["texts"] = [text for text, _ in scored.texts]
    request["framed"] = not subject.generates
    request["conversations"] = scored.conversations
    request["labels"] = subject.names_classes
    if scored.pictures:
        from snugfit.data.pictures.picture_format import PictureFormat

        request["pictures"] = scored.pictures
        request["mode"] = "L" if PictureFormat.of(subject.meta["pictures"]).channels == 1 else "RGB"
    return request


def _read_back(
    subject: ExportedModel, folder: Path, choice: ExportOptions, scored: ScoredRows
) -> list[Comparison]:
    quantized = choice.quantize is not None
    reading = read("transformers", folder, scored, {**request_of(subject, scored), "quantized": quantized})
    if quantized:
        one = subject.scale is None and not subject.names_any_number
        comparison = judged_quantised(reading, scored, chooses_one=one)
    else:
        comparison = judged(reading, scored, whole=rounded_logits(scored, rounding_to(choice.numbers)))
    return [with_uses(comparison, reading, subject, scored)]


def with_uses(
    comparison: Comparison, reading: Reading, subject: ExportedModel, scored: ScoredRows
) -> Comparison:
    """Return the comparison with stop tokens, label names and processed pictures."""
    problem, checked = comparison.problem, list(comparison.checked)
    if subject.generates:
        problem = problem or stop_problem(reading.values.get("stops"), scored.stops)
        checked.append("stop tokens")
    classes = subject.predictor.inference.classes
    if reading.values.get("labels") and scored.logits:
        own = [classes[int(each.argmax())] for each in scored.logits]
        near = comparison.largest or 0.0
        for row, (given, name) in enumerate(zip(reading.values["labels"], own, strict=True)):
            top = scored.logits[row].flatten().topk(min(2, len(classes))).values
            if given != name and float(top[0] - top[-1]) > 2 * near:
                problem = problem or f"it names row {row + 1} {given!r} where {name!r} was scored"
        checked.append("label names")
    if reading.pixels:
        off = max(
            float((one - each["pixel_values"]).abs().max())
            if one.shape == each["pixel_values"].shape
            else 1e9
            for one, each in zip(reading.pixels, scored.inputs, strict=True)
        )
        if off > PIXELS:
            problem = problem or f"its processor makes pixels that differ by {off:.3g}, more than {PIXELS}"
        checked.append("pixels")
    return replace(comparison, checked=tuple(checked), problem=problem)


PIXELS = 1e-3
"""Difference of a pixel, after normalising, that other orders of the same arithmetic make."""

FORMAT = Format(
    name="hf",
    summary="A folder that transformers loads by itself, with adapters merged.",
    packages=("transformers",),
    extra="text",
    label_unit=True,
    numbers=(FP32, BF16),
    quantizations=QUANTIZATIONS,
    check=_check,
    write=_write,
    read_back=_read_back,
    load=_load,
)
