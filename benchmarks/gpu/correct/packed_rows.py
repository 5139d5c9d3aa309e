"""Texts packed into rows: the gradients of padded ones, in the kernel that is told where each text begins where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, check, require
from material import LLAMAS, error_between, llama, on, technique

ROWS = 8
LIMITS = {"fp32": 1e-4, "bf16": 0.03}
"""Of the relative error of a tensor's gradient; kernels add in other orders."""


@contextmanager
def neighbours_seen() -> Iterator[None]:
    """Temporarily let texts in one row attend to each other, and nobody look for that at first."""
    import torch

    from snugfit.kit.packing.packed_rows import Packed
    from snugfit.techniques.placement import packing

    def everybody(layout: Any) -> Any:
        return torch.ones_like(layout.segments).bool().unsqueeze(2).expand(-1, -1, layout.width)

    with (
        mock.patch.object(Packed, "same_example", everybody),
        mock.patch.object(packing, "_checked", return_value=True),
    ):
        yield


def window(settings: Settings, vocabulary: int, tokens: int) -> dict[str, Any]:
    """Return texts of different lengths, padded on the right."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 8, tokens // 2, (ROWS, 1), generator=drawn)
    lengths[0] = tokens
    mask = (torch.arange(tokens) < lengths).long()
    ids = torch.randint(1, vocabulary, (ROWS, tokens), generator=drawn) * mask
    data = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    moved: dict[str, Any] = on(settings.device, data)
    return moved


def encoder(settings: Settings, vocabulary: int, tokens: int) -> Any:
    import torch
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    width, heads = settings.size((512, 8), (64, 4))
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=heads,
        max_position_embeddings=tokens,
        num_labels=vocabulary,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForTokenClassification(config).to(settings.device)


def gradients_of(
    settings: Settings, kind: str, precision: str, packed: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the gradients of an update, and the kernels of attention."""
    from snugfit import Step
    from tests.laws.problems import gradients

    shape, tokens = settings.size(("small", 512), ("toy", 32))
    vocabulary = LLAMAS[shape]["vocabulary"]
    model = (
        llama(shape, tokens, settings.device) if kind == "decoder" else encoder(settings, vocabulary, tokens)
    )
    techniques = [technique("bf16")] if precision == "bf16" else []
    step = Step(
        model,
        technique("sgd", learning_rate=0.01),
        "causal_lm" if kind == "decoder" else "cross_entropy",
        [*techniques, *([technique("packing")] if packed else [])],
        micro_batch=ROWS // 2,
    )
    done = step(window(settings, vocabulary, tokens))
    require(done.applied, "the update was not applied")
    return {name: tensor.cpu() for name, tensor in gradients(step).items()}, sorted(step.kernels or ())


@check("packed rows have the gradients of padded ones", 60, plants={"packed": neighbours_seen})
def packed_rows(settings: Settings) -> Mapping[str, Any]:
    figures: dict[str, Any] = {}
    for kind in ("decoder", "encoder"):
        for precision, limit in LIMITS.items():
            padded, _ = gradients_of(settings, kind, precision, packed=False)
            packed, kernels = gradients_of(settings, kind, precision, packed=True)
            error = error_between(packed, padded)
            figures[f"{kind}, {precision}"] = {"error": error, "kernels": kernels}
            require(error < limit, f"{kind} in {precision}: gradients are {error:.2g} away", **figures)
            by_example = "flash_varlen" in kernels
            require(
                by_example or not settings.cuda or precision == "fp32",
                f"{kind} in {precision}: attention ran in {', '.join(kernels)}, with a mask",
                **figures,
            )
    return figures
