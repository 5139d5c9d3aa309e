"""Settings of bitsandbytes by which transformers quantises what a technique does: the base of a run, or a merged model anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.errors import ModelError
from snugfit.kit.quantized.quantize import quantisable
from snugfit.models.adapter_bundle import BASE
from snugfit.techniques import find

QUANTIZATIONS = ("nf4", "int8")
"""Techniques that quantise a base by bitsandbytes, by the names that `--quantize` takes."""

_KERNEL_OUTPUTS, _KERNEL_INPUTS = 32, 64
"""Of a block of the kernel for processors with AVX512-BF16: `block_n` of `bitsandbytes.functional`, and the block of one scale."""

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


def check_widths(model: nn.Module, quantize: str) -> None:
    """See that the four-bit kernel of bitsandbytes that this processor has takes every layer: some take blocks of outputs alone.

    Raises:
        ModelError: one of them does not.
    """
    if quantize != "nf4":
        return
    from bitsandbytes.functional import has_avx512bf16

    if not has_avx512bf16():
        return
    technique: Any = find(quantize)()
    for name in quantisable(model, technique.skip, quantize):
        outputs, inputs = model.get_parameter(f"{name}.weight").shape
        if outputs % _KERNEL_OUTPUTS or inputs % _KERNEL_INPUTS:
            raise ModelError(
                "--quantize",
                f"on this processor bitsandbytes computes nf4 in blocks of {_KERNEL_OUTPUTS} outputs and {_KERNEL_INPUTS} inputs, and {name} has "
                f"{outputs} and {inputs}",
                "Quantise to int8, or export on another machine.",
            )


def base_quantization(subject: ExportedModel) -> dict[str, Any]:
    """Return the arguments of `BitsAndBytesConfig` by which the base of a run was quantised; none for a whole one.

    Raises:
        MissingExtra: bitsandbytes or accelerate is not installed.
    """
    alone = subject.meta.get(BASE, {}).get("quantized")  # of an adapter without its run
    for entry in alone or subject.recipe.get("techniques") or ():
        for name, settings in ({entry: {}} if isinstance(entry, str) else entry).items():
            if name in QUANTIZATIONS:
                return quantization_settings(name, subject.model, settings)
    return {}
