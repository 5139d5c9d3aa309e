"""Small models and devices for regret.py: few layers, of widths at which arithmetic counts, since a dry run costs the same at any width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from cases import from_config, token_losses
from torch import Tensor, nn

from snugfit.core.loss_terms import Loss


@dataclass(frozen=True)
class Model:
    """A model, the window that it is trained on, and its loss; `own` are the recipe's techniques."""

    make: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: str | Loss = "cross_entropy"
    own: tuple[str, ...] = ("adamw", "clip_norm")


def texts(rows: int, length: int, words: int, classes: int = 0) -> Callable[[], dict[str, Tensor]]:
    """Return a maker of texts, to be classified where there are classes, else to be continued."""

    def make() -> dict[str, Tensor]:
        ids = torch.zeros(rows, length, dtype=torch.long)
        labels = torch.zeros(rows, dtype=torch.long) if classes else ids.clone()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return make


def translations(rows: int, length: int) -> Callable[[], dict[str, Tensor]]:
    def make() -> dict[str, Tensor]:
        sources = texts(rows, length, 1)()
        answers = torch.zeros(rows, length // 2, dtype=torch.long)
        return {**sources, "decoder_input_ids": answers, "labels": answers.clone()}

    return make


def images(rows: int, size: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {
        "pixel_values": torch.zeros(rows, 3, size, size),
        "labels": torch.zeros(rows, dtype=torch.long),
    }


class Tagger(nn.Module):
    """Two layers of an LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30_000, 512)
        self.layers = nn.LSTM(512, 1024, 2, batch_first=True)
        self.head = nn.Linear(1024, 20)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states, _ = self.layers(self.embedding(input_ids))
        logits: Tensor = self.head(states.mean(1))
        return logits


class Ranker(nn.Module):
    """Embeddings of eight columns, and a small network over what they and the numbers say."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(200_000, 64) for _ in range(8))
        self.numbers = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64))
        self.top = nn.Sequential(
            nn.Linear(9 * 64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 2)
        )

    def forward(self, numbers: Tensor, columns: Tensor) -> Tensor:
        parts = [each(columns[:, place]) for place, each in enumerate(self.columns)]
        logits: Tensor = self.top(torch.cat([self.numbers(numbers), *parts], 1))
        return logits


def clicks(rows: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {
        "numbers": torch.zeros(rows, 13),
        "columns": torch.zeros(rows, 8, dtype=torch.long),
        "labels": torch.zeros(rows, dtype=torch.long),
    }


def _llama(hidden: int, layers: int, inner: int, words: int) -> Mapping[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "intermediate_size": inner,
        "vocab_size": words,
    }


MODELS: Mapping[str, Model] = {
    "llama, wide": Model(
        from_config("LlamaConfig", "LlamaForCausalLM", **_llama(2048, 2, 5632, 32_000)),
        texts(8, 512, 32_000),
        "causal_lm",
    ),
    "llama, deep": Model(
        from_config("LlamaConfig", "LlamaForCausalLM", **_llama(768, 6, 2048, 16_000)),
        texts(4, 1024, 16_000),
        "causal_lm",
    ),
    "gpt2, many words": Model(
        from_config("GPT2Config", "GPT2LMHeadModel", n_embd=768, n_layer=4, n_head=12, vocab_size=50_257),
        texts(8, 256, 50_257),
        "causal_lm",
    ),
    "bert": Model(
        from_config(
            "BertConfig",
            "BertForSequenceClassification",
            hidden_size=768,
            num_hidden_layers=2,
            num_attention_heads=12,
            intermediate_size=3072,
        ),
        texts(32, 256, 30_522, classes=2),
    ),
    "vit": Model(
        from_config(
            "ViTConfig",
            "ViTForImageClassification",
            hidden_size=768,
            num_hidden_layers=2,
            num_attention_heads=12,
            intermediate_size=3072,
            num_labels=100,
        ),
        images(32, 224),
        own=("adamw",),
    ),
    "t5": Model(
        from_config(
            "T5Config",
            "T5ForConditionalGeneration",
            d_model=768,
            d_kv=64,
            d_ff=2048,
            num_layers=2,
            num_heads=12,
            decoder_start_token_id=0,
        ),
        translations(4, 512),
        token_losses,
        own=("adafactor",),
    ),
    "resnet": Model(
        from_config("ResNetConfig", "ResNetForImageClassification", depths=[1, 1, 2, 1], num_labels=100),
        images(64, 160),
        own=("sgd",),
    ),
    "convnext": Model(
        from_config(
            "ConvNextConfig",
            "ConvNextForImageClassification",
            depths=[1, 1, 2, 1],
            hidden_sizes=[96, 192, 384, 768],
            num_labels=100,
        ),
        images(32, 160),
        own=("adamw",),
    ),
    "lstm": Model(Tagger, texts(32, 128, 30_000, classes=20)),
    "mixtral": Model(
        from_config(
            "MixtralConfig",
            "MixtralForCausalLM",
            **_llama(1024, 2, 2816, 32_000),
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
        texts(4, 1024, 32_000),
        "causal_lm",
    ),
    "ranker": Model(Ranker, clicks(4096), own=("adamw",)),
}

PAIRS: tuple[tuple[str, str], ...] = (
    ("llama, wide", "a100-80"),
    ("gpt2, many words", "t4"),
    ("vit", "rtx3090"),
    ("mixtral", "h100"),
    ("ranker", "a100-80"),
    ("bert", "t4"),
    ("lstm", "rtx4090"),
    ("resnet", "t4"),
    ("t5", "rtx3090"),
    ("convnext", "l4"),
    ("llama, wide", "cpu"),
    ("llama, deep", "rtx3090"),
    ("bert", "h100"),
    ("vit", "a100-80"),
    ("mixtral", "rtx3090"),
    ("lstm", "t4"),
    ("ranker", "rtx3050-laptop"),
    ("resnet", "a100-80"),
    ("llama, wide", "t4"),
    ("convnext", "rtx3050-laptop"),
    ("t5", "v100"),
    ("bert", "cpu"),
    ("gpt2, many words", "l4"),
    ("llama, deep", "h100"),
)
