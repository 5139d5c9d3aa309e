"""The subjects that are planned and trained: models from their configs, whole and tiny, with techniques of each kind, and budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job
from snugfit.core.technique import Technique
from snugfit.kit.skeleton import skeleton
from snugfit.planner.trace.dry_run import Subject
from snugfit.techniques import find

Entry = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Model:
    """A model of 100 to 300 million parameters, or the same in tiny; an update's examples; the loss."""

    make: Callable[[bool], nn.Module]
    data: Callable[[bool], Any]
    loss: str = "cross_entropy"


def mlp(tiny: bool) -> nn.Module:
    width = 64 if tiny else 8192
    return nn.Sequential(
        nn.Linear(width, width), nn.GELU(), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 10)
    )


def rows_of_numbers(tiny: bool) -> Any:
    rows, width = (8, 64) if tiny else (4096, 8192)
    return torch.randn(rows, width), torch.randint(10, (rows,))


def from_config(
    config: str, model: str, whole: Mapping[str, Any], small: Mapping[str, Any]
) -> Callable[[bool], nn.Module]:
    def make(tiny: bool) -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(**(small if tiny else whole))
        network: nn.Module = getattr(transformers, model)(settings)
        return network

    return make


def texts(vocabulary: int, classes: int = 0) -> Callable[[bool], dict[str, Tensor]]:
    def make(tiny: bool) -> dict[str, Tensor]:
        rows, tokens = (4, 32) if tiny else (8, 512)
        ids = torch.randint(0, 128 if tiny else vocabulary, (rows, tokens))
        labels = torch.randint(0, classes, (rows,)) if classes else ids.clone()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return make


def images(tiny: bool) -> dict[str, Tensor]:
    rows, size = (4, 32) if tiny else (32, 224)
    return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(0, 2, (rows,))}


_TINY = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}

MODELS: Mapping[str, Model] = {
    "mlp": Model(mlp, rows_of_numbers),
    "resnet": Model(
        from_config(
            "ResNetConfig",
            "ResNetForImageClassification",
            {"hidden_sizes": [512, 1024, 2048, 4096]},  # ResNet-50, twice as wide
            {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]},
        ),
        images,
    ),
    "vit": Model(
        from_config(
            "ViTConfig", "ViTForImageClassification", {}, {**_TINY, "image_size": 32, "patch_size": 8}
        ),
        images,
    ),
    "bert": Model(
        from_config("BertConfig", "BertForSequenceClassification", {}, {**_TINY, "vocab_size": 128}),
        texts(30522, classes=2),
    ),
    "gpt2": Model(
        from_config(
            "GPT2Config", "GPT2LMHeadModel", {}, {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128}
        ),
        texts(50257),
        "causal_lm",
    ),
    "llama": Model(
        from_config(
            "LlamaConfig",
            "LlamaForCausalLM",
            {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 16,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "vocab_size": 32000,
            },
            {**_TINY, "num_key_value_heads": 2, "vocab_size": 128},
        ),
        texts(32000),
        "causal_lm",
    ),
    "llama-1b": Model(
        from_config(
            "LlamaConfig",
            "LlamaForCausalLM",
            {
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 32000,
            },
            {**_TINY, "num_key_value_heads": 2, "vocab_size": 128},
        ),
        texts(32000),
        "causal_lm",
    ),
}


@dataclass(frozen=True)
class Case:
    """A model, the techniques that it is trained with, and the examples of a micro-batch."""

    model: str
    entries: tuple[Entry, ...] = ()
    micro_batch: int | None = None

    @property
    def name(self) -> str:
        words = [entry if isinstance(entry, str) else entry[0] for entry in self.entries] or ["fp32"]
        return f"{self.model}: {', '.join(words)}" + (
            f", micro-batch {self.micro_batch}" if self.micro_batch else ""
        )

    def techniques(self) -> tuple[Technique, ...]:
        techniques = [
            find(entry)() if isinstance(entry, str) else find(entry[0])(**entry[1]) for entry in self.entries
        ]
        if not any("optimizer" in each.card.seams for each in techniques):
            techniques.insert(0, find("adamw")(learning_rate=1e-4))
        return tuple(techniques)


_LORA = ("lora", {"rank": 16, "alpha": 32.0})
_AVERAGE = ("ema", {"decay": 0.999})
_CLIP = ("clip_norm", {"max_norm": 1.0})

CASES = (
    Case("mlp"),
    Case("mlp", ("tf32",)),
    Case("mlp", ("bf16", _CLIP)),
    Case("resnet"),
    Case("resnet", ("fp16", "channels_last", _AVERAGE, _CLIP)),
    Case("resnet", ("bf16", "channels_last"), 16),
    Case("vit", ("tf32", "recompute")),
    Case("vit", ("bf16", _AVERAGE, _CLIP)),
    Case("vit", ("fp16",), 8),
    Case("bert"),
    Case("bert", ("fp16", _CLIP), 2),
    Case("bert", ("bf16", "recompute")),
    Case("gpt2", ("bf16",)),
    Case("gpt2", ("tf32",), 4),
    Case("gpt2", ("bf16", "chunked_loss")),
    Case("gpt2", ("bf16", "activation_offload")),
    Case("gpt2", ("bf16", "optimizer_offload")),
    Case("gpt2", ("bf16", "adamw_8bit")),
    Case("gpt2", ("pure_bf16",)),
    Case("llama", ("bf16",)),
    Case("llama", ("bf16", "recompute"), 2),
    Case("llama", ("bf16", "chunked_loss", _LORA)),
    Case("llama", ("bf16", "recompute", "nf4", _LORA)),
    Case("llama", ("bf16", "weight_streaming", "recompute", _LORA)),
    Case("llama", ("tf32", _AVERAGE, _CLIP)),
    Case("llama", ("bf16", "optimizer_in_backward")),
)
TOY_CASES = (Case("gpt2", ("recompute", _AVERAGE, _CLIP), 2), Case("llama", (_CLIP,)))


@dataclass(frozen=True)
class Budgeted:
    """A model that is to be trained in so many bytes."""

    model: str
    bytes: int

    @property
    def name(self) -> str:
        return f"planned and trained: {self.model} in {self.bytes / 2**30:.3g} GiB"

    def techniques(self) -> tuple[Technique, ...]:
        return (find("adamw")(learning_rate=1e-4),)


BUDGETS = tuple(
    Budgeted(model, gib * 2**30)
    for model, gib in (("gpt2", 4), ("llama", 8), ("llama", 16), ("llama-1b", 24), ("llama-1b", 80))
)
TOY_BUDGETS = (Budgeted("gpt2", 2**30),)

UPDATES = 1000
"""That a run is said to have."""


def job_of(window: Batch) -> Job:
    return Job.of(global_batch=window.rows, updates=UPDATES)


def subject_of(model: str, techniques: tuple[Technique, ...], toy: bool) -> Subject:
    """Return what the planner is told: neither the weights nor the device are there."""
    made = MODELS[model]
    with torch.device("meta"):
        bare = made.make(toy)
    window = Batch.of(made.data(toy))
    return Subject(
        lambda: skeleton(bare), window, job_of(window), window.rows * UPDATES, techniques, made.loss
    )
