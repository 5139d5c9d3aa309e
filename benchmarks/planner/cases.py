"""Models from their configs, and what they are trained with: the cases of memory.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.technique import Technique
from snugfit.kit.skeleton import skeleton
from snugfit.planner.trace.dry_run import Subject
from snugfit.techniques import find

UPDATES = 3
ROWS = 8

Entry = str | tuple[str, Mapping[str, Any]]
"""A technique with the settings of its own example, or with these."""


@dataclass(frozen=True)
class Model:
    """A model, its largest window and its loss; `kind` says which bound its error has to keep."""

    kind: str  # "transformer", "convolution", "other"
    make: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: str | Loss = "cross_entropy"


@dataclass(frozen=True)
class Case:
    """A run of a few updates, and of an evaluation where it is asked for."""

    model: str
    entries: tuple[Entry, ...] = ()
    micro_batch: int | None = None
    evaluated: bool = False

    @property
    def name(self) -> str:
        words = [entry if isinstance(entry, str) else _words(*entry) for entry in self.entries]
        words += [f"micro-batch {self.micro_batch}"] if self.micro_batch else []
        words += ["evaluation"] if self.evaluated else []
        return f"{self.model}: {', '.join(words) or 'adamw'}"

    @property
    def made(self) -> Model:
        """Return the model, and what it is trained on."""
        from deep import MODELS as deep

        return MODELS.get(self.model) or deep[self.model]

    def techniques(self) -> tuple[Technique, ...]:
        techniques = [_made(entry) for entry in self.entries]
        if not any("optimizer" in technique.card.seams for technique in techniques):
            techniques.insert(0, _made("adamw"))
        return tuple(techniques)

    @property
    def plan(self) -> Plan:
        return Plan(micro_batch=self.micro_batch)

    def subject(self, model: nn.Module, window: Batch) -> Subject:
        """Return what the planner is told: the model on the meta device, and a batch of the run's shapes."""
        bare = skeleton(model)
        return Subject(
            lambda: copy.deepcopy(bare),
            window,
            Job.of(global_batch=window.rows, updates=UPDATES),
            100,
            self.techniques(),
            self.made.loss,
            evaluation=window if self.evaluated else None,
        )


def _words(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in settings.items())})"


def _made(entry: Entry) -> Technique:
    if isinstance(entry, str):
        return find(entry).example()
    name, settings = entry
    return find(name)(**settings)


def from_config(config: str, model: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        network: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return network

    return make


def tokens(rows: int = ROWS, classes: int = 0) -> Callable[[], dict[str, Tensor]]:
    """Texts of 64 tokens, to be classified where there are classes."""

    def make() -> dict[str, Tensor]:
        ids = torch.randint(0, 4000, (rows, 64))
        labels = torch.randint(0, classes, (rows,)) if classes else ids.clone()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return make


def pairs() -> dict[str, Tensor]:
    """Texts of 64 tokens, and their translations of 48."""
    texts = tokens()()
    answers = torch.randint(0, 4000, (ROWS, 48))
    return {**texts, "decoder_input_ids": answers, "labels": answers.clone()}


def token_losses(outputs: Any, data: Any) -> Tensor:
    """Return the loss of each token by itself."""
    return nn.functional.cross_entropy(outputs.logits.transpose(1, 2), data["labels"], reduction="none")


token_losses.labels_ahead = 0  # type: ignore[attr-defined]


def images(size: int = 64) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"pixel_values": torch.randn(ROWS, 3, size, size), "labels": torch.randint(0, 10, (ROWS,))}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4000, 96)
        self.layers = nn.LSTM(96, 160, 2, batch_first=True)
        self.head = nn.Linear(160, 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states, _ = self.layers(self.embedding(input_ids))
        logits: Tensor = self.head(states.mean(1))
        return logits


class Odd(nn.Module):
    """A user's own: a loop over the length of the texts, weights used twice, a buffer, a branch on a value of the batch, and a layer
    that is never called.
    """

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(4000, 128, mode="mean")
        self.cell = nn.GRUCell(128, 128)
        self.mix = nn.Parameter(torch.randn(128, 128) / 11)
        self.register_buffer("steps", torch.zeros(()))
        self.norms = nn.ModuleDict({"even": nn.LayerNorm(128), "odd": nn.GroupNorm(4, 128)})
        self.head = nn.Linear(128, 10)
        self.unused = nn.Linear(128, 512)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if not bool(attention_mask.any()):
            raise ValueError("the texts are empty")
        self.steps += 1
        state = self.words(input_ids)
        for number in range(int(attention_mask.sum(1).max()) // 8):
            state = self.cell(torch.tanh(state @ self.mix @ self.mix.t()), state)
            state = self.norms["even" if number % 2 == 0 else "odd"](state)
        rows = state[attention_mask[:, 0].bool()]
        logits: Tensor = self.head(torch.einsum("bi,bj->bij", rows, rows).sum(1))
        return logits


_WIDE = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 4000,
}
_VISION = {key: value for key, value in _WIDE.items() if key != "vocab_size"}

_LARGE = {
    **_WIDE,
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 1408,
}

MODELS: Mapping[str, Model] = {
    "mlp": Model(
        "other",
        lambda: nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)
        ),
        lambda: (torch.randn(ROWS * 8, 256), torch.randint(10, (ROWS * 8,))),
    ),
    "resnet": Model(
        "convolution",
        from_config(
            "ResNetConfig",
            "ResNetForImageClassification",
            embedding_size=32,
            hidden_sizes=[32, 64, 128],
            depths=[2, 2, 2],
            layer_type="basic",
            num_labels=10,
        ),
        images(),
    ),
    "resnet bottleneck": Model(
        "convolution",
        from_config(
            "ResNetConfig",
            "ResNetForImageClassification",
            embedding_size=32,
            hidden_sizes=[64, 128, 256],
            depths=[2, 2, 2],
            layer_type="bottleneck",
            num_labels=10,
        ),
        images(),
    ),
    "vit": Model(
        "transformer",
        from_config(
            "ViTConfig", "ViTForImageClassification", **_VISION, image_size=64, patch_size=8, num_labels=10
        ),
        images(),
    ),
    "bert": Model(
        "transformer", from_config("BertConfig", "BertForSequenceClassification", **_WIDE), tokens(classes=2)
    ),
    "t5": Model(
        "transformer",
        from_config(
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=4000,
            d_model=192,
            d_kv=48,
            d_ff=512,
            num_layers=3,
            num_heads=4,
            decoder_start_token_id=0,
        ),
        pairs,
        token_losses,
    ),
    "gpt2": Model(
        "transformer",
        from_config("GPT2Config", "GPT2LMHeadModel", n_embd=192, n_layer=4, n_head=4, vocab_size=4000),
        tokens(),
        "causal_lm",
    ),
    "llama": Model(
        "transformer",
        from_config("LlamaConfig", "LlamaForCausalLM", **_WIDE, num_key_value_heads=2),
        tokens(),
        "causal_lm",
    ),
    "mixtral": Model(
        "transformer",
        from_config(
            "MixtralConfig",
            "MixtralForCausalLM",
            **_WIDE,
            num_key_value_heads=2,
            num_local_experts=4,
        ),
        tokens(),
        "causal_lm",
    ),
    "large llama": Model(
        "transformer",
        from_config("LlamaConfig", "LlamaForCausalLM", **_LARGE, num_key_value_heads=4),
        tokens(),
        "causal_lm",
    ),
    "large bert": Model(
        "transformer", from_config("BertConfig", "BertForSequenceClassification", **_LARGE), tokens(classes=2)
    ),
    "large resnet": Model(
        "convolution",
        from_config("ResNetConfig", "ResNetForImageClassification", depths=[2, 2, 2, 2], num_labels=10),
        images(128),
    ),
    "lstm": Model("other", Recurrent, tokens(classes=10)),
    "odd module": Model("other", Odd, tokens(classes=10)),
}


def _cases(model: str, *rows: tuple[Entry, ...] | Case) -> list[Case]:
    return [row if isinstance(row, Case) else Case(model, row) for row in rows]


_ADAPTERS = ("lora", {"rank": 8})

CASES: tuple[Case, ...] = (
    *_cases(
        "mlp",
        (),
        ("sgd",),
        ("mixup",),
        ("muon",),
        ("ema", "clip_norm"),
        ("hard_examples",),
        ("distillation",),
        ("int8", _ADAPTERS),
        Case("mlp", ("swa",), 16, evaluated=True),
    ),
    *_cases(
        "resnet",
        (),
        ("sam",),
        ("cutmix", "ema"),
        ("channels_last",),
        ("bf16",),
        ("bf16", "channels_last"),
        ("recompute",),
        Case("resnet", ("sgd",), evaluated=True),
    ),
    *_cases("resnet bottleneck", ("sgd",), ("bf16", "ema"), ("activation_offload",)),
    *_cases(
        "vit",
        (),
        ("mixup", "label_smoothing"),
        ("pure_bf16",),
        ("recompute",),
        ("stochastic_depth",),
        ("sam",),
    ),
    *_cases(
        "bert",
        (),
        ("bf16",),
        ("optimizer_in_backward",),
        ("gradual_unfreeze",),
        ("distillation",),
        ("hard_examples",),
        ("embedding_norm", "clip_norm"),
        ("sequence_length",),
        ("lookahead", "gradient_noise"),
        ("ia3",),
        Case("bert", ("gradient_cache",), 2),
        Case("bert", ("ema",), 2, evaluated=True),
    ),
    *_cases("t5", (), ("adafactor",), ("recompute", "bf16"), ("chunked_loss",), Case("t5", ("ema",), 2)),
    *_cases(
        "gpt2",
        (),
        ("recompute",),
        ("adamw_8bit",),
        ("adamw_4bit",),
        ("fp16", "clip_norm"),
        ("weight_streaming", _ADAPTERS),
        ("activation_offload",),
        ("schedule_free",),
        ("lion", "ema"),
        Case("gpt2", ("optimizer_offload",), 2),
    ),
    *_cases(
        "llama",
        (),
        ("recompute", "clip_norm"),
        (_ADAPTERS,),
        (_ADAPTERS, "recompute"),
        ("nf4", _ADAPTERS, "recompute"),
        ("nf4", _ADAPTERS, "bf16"),
        ("fp8",),
        ("qat",),
        ("chunked_loss",),
        ("tiled_linear",),
        ("z_loss", "fp32_logits", "bf16"),
        ("sam", "recompute"),
        Case("llama", ("ema",), 2, evaluated=True),
        Case("llama", ("nf4", _ADAPTERS, "recompute"), 2, evaluated=True),
    ),
    *_cases("mixtral", (), ("recompute",), (_ADAPTERS, "bf16"), Case("mixtral", (), 2)),
    *_cases("lstm", (), ("sgd", "clip_norm"), ("ema",)),
    *_cases("odd module", (), ("recompute",), Case("odd module", ("ema",), 2, evaluated=True)),
    *_cases("mlp", ("adamw_8bit",)),  # one large matrix, whose update has the peak
    *_cases("bert", ("adamw_8bit", "pure_bf16")),
)

RESIDENT_CASES: tuple[Case, ...] = (
    Case("large llama"),
    Case("large llama", ("recompute",)),
    Case("large llama", (_ADAPTERS, "recompute"), 2),
    Case("large llama", ("ema",), evaluated=True),
    Case("large bert"),
    Case("large bert", ("bf16",)),
    Case("large bert", ("sam",), 4),
    Case("large resnet"),
    Case("large resnet", ("sgd",), 4),
)
"""Large enough that what a process takes besides is a small part."""

QUICK = (0, 9, 20, 26, 38, 43, 53, 71, 75)
"""Places of a few cases, of each kind of model."""
