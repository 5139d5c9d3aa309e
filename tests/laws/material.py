"""Windows of numbers and of classified texts, and the stock models that take them, beside what any technique is tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.tools.certify.technique_windows import IGNORED as IGNORED
from snugfit.tools.certify.technique_windows import Window as Window
from snugfit.tools.certify.technique_windows import cast as cast
from snugfit.tools.certify.technique_windows import images as images
from snugfit.tools.certify.technique_windows import poisoned as poisoned
from snugfit.tools.certify.technique_windows import texts as texts
from snugfit.tools.certify.technique_windows import unlabelled as unlabelled
from tests.laws.models import IMAGE, LONGEST, VOCABULARY, WIDTH


def numbers(rows: Sequence[int]) -> list[Window]:
    source = torch.Generator().manual_seed(11)
    return [
        {
            "numbers": torch.randn(count, 5, generator=source),
            "labels": torch.randint(0, 3, (count,), generator=source),
        }
        for count in rows
    ]


def classified(labels_per_token: bool) -> Callable[[Sequence[int]], list[Window]]:
    def make(rows: Sequence[int]) -> list[Window]:
        made = texts(per_token=labels_per_token)(rows)
        for window in made:
            del window["context"]
            if not labels_per_token:
                window["labels"] = window["labels"].clamp(max=2)
        return made

    return make


def averaged(model: nn.Module, data: Any) -> dict[str, Tensor]:
    mask = data["attention_mask"]
    logits = model(input_ids=data["input_ids"], attention_mask=mask).logits
    weight = mask.unsqueeze(-1).to(logits.dtype)
    return {"logits": (logits * weight).sum(dim=1) / weight.sum(dim=1)}


def bert(dropout: float) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    return BertForSequenceClassification(config)


def of_any_size(model: nn.Module, data: Any) -> Any:
    return model(pixel_values=data["pixel_values"], interpolate_pos_encoding=True)


def vit(dropout: float) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=IMAGE,
        patch_size=2,
        num_channels=1,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    return ViTForImageClassification(config)


def gpt2(dropout: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LONGEST,
        n_embd=WIDTH,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config)
