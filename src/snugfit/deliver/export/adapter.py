"""The adapter alone, in peft's format: a small folder that goes on the base it was trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from snugfit.deliver.export.comparison import EXACT, Comparison, differences
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import (
    ExportedModel,
    check_of_transformers,
    copy_adapter,
    is_local,
    name_elsewhere,
)
from snugfit.deliver.export.hf import auto_class
from snugfit.deliver.export.preprocessing import write_generation_config
from snugfit.deliver.export.quantization import base_quantization
from snugfit.deliver.export.read_back import judged, prompts_of, read
from snugfit.deliver.export.scored import ScoredRows
from snugfit.errors import ModelError
from snugfit.models.adapter_bundle import ADAPTER, BASE
from snugfit.models.folders import vocabulary_size
from snugfit.models.tokenizer import save_tokenizer

_QUANTISED_SLACK = 2e-2
"""Difference that kernels make which compute with a quantised base, where the merged weights were scored whole: bitsandbytes' for processors with
AVX512-BF16 compute in bf16."""

_USAGE = """\
import transformers
from peft import PeftModel

base = transformers.AUTO.from_pretrained("BASE"MORE)
"""

_LOADED = """\
model = PeftModel.from_pretrained(base, "FOLDER")
"""

_NEW_TOKENS = """\
base.resize_token_embeddings(ROWS, mean_resizing=False)  # the adapter has the rows of new tokens
"""

_STOPS = """\
model.generation_config = transformers.GenerationConfig.from_pretrained("FOLDER")  # up to the tokens that ended its answers
"""


def _check(subject: ExportedModel, _choice: ExportOptions) -> None:
    check_of_transformers(subject, "adapter")
    if subject.bundle is None or not (subject.bundle / ADAPTER).is_dir():
        raise ModelError(
            "--to",
            "adapter needs a model that was trained with adapters, and this one has none",
            "Take hf, or train with lora.",
        )
    if subject.recipe.get("from_scratch"):
        raise ModelError(
            "--to",
            f"the base of this adapter is {subject.recipe.get('model')} with weights drawn anew, which are in no file",
            "Take hf, which has them.",
        )
    base_quantization(subject)  # sees that its package is here


def _base(subject: ExportedModel) -> str:
    assert subject.bundle is not None
    config = json.loads((subject.bundle / ADAPTER / "adapter_config.json").read_text(encoding="utf-8"))
    alone = subject.meta.get(BASE, {}).get("model")
    return str(alone or subject.recipe.get("model") or config.get("base_model_name_or_path"))


def _settings(subject: ExportedModel) -> dict[str, Any]:
    """Return the arguments with which a base gets a head for the labels."""
    labels = list(subject.meta.get("labels") or ())
    return {"num_labels": len(labels)} if labels else {}


def _write(subject: ExportedModel, folder: Path, _choice: ExportOptions, scored: ScoredRows) -> Written:
    copy_adapter(subject, folder)
    if subject.predictor.tokenizer is not None:
        save_tokenizer(subject.predictor.tokenizer, folder)
    if subject.generates:
        write_generation_config(subject, folder, scored)
    quantization = base_quantization(subject)
    more = "".join(f", {name}={value!r}" for name, value in _settings(subject).items())
    if quantization:
        settings = ", ".join(f"{name}={value!r}" for name, value in quantization.items())
        more += f", quantization_config=transformers.BitsAndBytesConfig({settings})"
    base = _base_elsewhere(subject)
    usage = _USAGE.replace("AUTO", auto_class(subject)).replace("BASE", base).replace("MORE", more)
    if rows := _new_rows(subject):
        usage += _NEW_TOKENS.replace("ROWS", str(rows))
    usage += _LOADED
    if subject.generates:
        usage += _STOPS
    notes = []
    if is_local(_base(subject)):
        notes.append(
            f"`{base}` stands for a local folder, the base that it was trained on: write where the same weights lie."
        )
    if quantization:
        bits = 4 if "load_in_4bit" in quantization else 8
        notes.append(
            f"It was trained on a base in {bits} bits. Kernels that compute with it round, on some processors to bf16. With `base = base.dequantize()` "
            "before peft reads the adapter, its logits are those that were scored."
        )
    return Written(usage=usage, notes=notes, header={"library_name": "peft"})


def _new_rows(subject: ExportedModel) -> int | None:
    """Return how many tokens the model has embeddings for; None where its base has as many."""
    own, base = getattr(subject.config, "vocab_size", None), vocabulary_size(_base(subject))
    return own if base is not None and own != base else None


def _base_elsewhere(subject: ExportedModel) -> str:
    """Return the base as the card names it."""
    return name_elsewhere(_base(subject))


def _read_back(
    subject: ExportedModel, folder: Path, _choice: ExportOptions, scored: ScoredRows
) -> list[Comparison]:
    quantization = base_quantization(subject)
    request = {
        "auto": auto_class(subject),
        "base": _base(subject),
        "settings": _settings(subject),
        "vocabulary": _new_rows(subject),
        "quantization": quantization,
        **prompts_of(scored),
    }
    reading = read("peft", folder, scored, request)
    if not quantization:
        return [judged(reading, scored)]
    comparison = judged(reading, scored, slack=_QUANTISED_SLACK)
    rounding, _ = differences(reading.whole, reading.logits)
    unexplained, _ = differences(scored.logits, reading.whole)
    problem = comparison.problem
    if not unexplained <= EXACT:
        problem = problem or (
            f"with its base written whole its logits differ by {unexplained:.3g} of their spread, more than {EXACT:.3g}"
        )
    return [replace(comparison, rounding=rounding, problem=problem)]


FORMAT = Format(
    name="adapter",
    summary="The adapter alone, in peft's format.",
    packages=("transformers", "peft"),
    extra="adapters",
    check=_check,
    write=_write,
    read_back=_read_back,
)
