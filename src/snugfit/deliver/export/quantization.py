"""Settings of bitsandbytes by which transformers quantises what a technique does: the base of a run, or a merged model anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.techniques import find

QUANTIZATIONS = ("nf4", "int8")
"""Techniques that quantise a base by bitsandbytes, by the names that `--quantize` takes."""

PACKAGES = ("bitsandbytes", "accelerate")
"""Packages that transformers quantises with, by the names that they are imported by."""


def quantization_settings(
    name: str, model: nn.Module, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments of `BitsAndBytesConfig` by which the technique has the layers of `model` quantised.

    Args:
        settings: of the technique, as a recipe writes them.
    Raises:
        MissingExtra: bitsandbytes or accelerate is not installed.
    """
    technique: Any = find(name)
    config = technique(**(settings or {})).loading(model)["quantization_config"]
    return {key: value for key, value in config.to_diff_dict().items() if not key.startswith("_")}


def base_quantization(subject: ExportedModel) -> dict[str, Any]:
    """Return the arguments of `BitsAndBytesConfig` by which the base of a run was quantised; none for a whole one.

    Raises:
        MissingExtra: bitsandbytes or accelerate is not installed.
    """
    for entry in subject.recipe.get("techniques") or ():
        for name, settings in ({entry: {}} if isinstance(entry, str) else entry).items():
            if name in QUANTIZATIONS:
                return quantization_settings(name, subject.model, settings)
    return {}
