"""Deep models, and what they are trained with, of which few blocks and micro-batches have to tell all: a case of memory.py each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cases import Case, Model, from_config, pairs, token_losses, tokens
from torch import Tensor, nn

_DEEP: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": 4000,
}


class Stem(nn.Module):
    """Blocks of which the first three are of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4000, 64)
        first = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(3)]
        rest = [nn.TransformerEncoderLayer(64, 4, 160, batch_first=True, dropout=0.0) for _ in range(30)]
        self.layers = nn.ModuleList([*first, *rest])
        self.head = nn.Linear(64, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.words(input_ids)
        for layer in self.layers:
            states = layer(states)
        logits: Tensor = self.head(states.mean(1))
        return logits


_SLIDING = {**_DEEP, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16}

MODELS: Mapping[str, Model] = {
    "llama, 18 blocks": Model(
        "transformer",
        from_config("LlamaConfig", "LlamaForCausalLM", **_DEEP, num_key_value_heads=2),
        tokens(),
        "causal_lm",
    ),
    "gpt2, 18 blocks": Model(
        "transformer",
        from_config("GPT2Config", "GPT2LMHeadModel", n_embd=64, n_layer=18, n_head=4, vocab_size=4000),
        tokens(),
        "causal_lm",
    ),
    "bert, 18 blocks": Model(
        "transformer", from_config("BertConfig", "BertForSequenceClassification", **_DEEP), tokens(classes=2)
    ),
    "t5, 24 and 24 blocks": Model(
        "transformer",
        from_config(
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=4000,
            d_model=64,
            d_kv=16,
            d_ff=160,
            num_layers=24,
            num_heads=4,
            decoder_start_token_id=0,
        ),
        pairs,
        token_losses,
    ),
    "gemma2, 34 blocks, every other one sliding": Model(
        "transformer",
        from_config("Gemma2Config", "Gemma2ForCausalLM", **{**_SLIDING, "num_hidden_layers": 34}),
        tokens(),
        "causal_lm",
    ),
    "llama, 18 blocks, windows of 12": Model(
        "transformer",
        from_config("LlamaConfig", "LlamaForCausalLM", **_DEEP, num_key_value_heads=2),
        tokens(rows=12),
        "causal_lm",
    ),
    "own, 3 blocks of another kind first": Model("transformer", Stem, tokens(classes=2)),
}

_ADAPTERS = ("lora", {"rank": 8})

DEEP: tuple[Case, ...] = (
    Case("llama, 18 blocks"),
    Case("llama, 18 blocks", ("recompute", "clip_norm")),
    Case("llama, 18 blocks, windows of 12", ("nf4", _ADAPTERS, "recompute"), 1),
    Case("gpt2, 18 blocks", ("ema",), evaluated=True),
    Case("bert, 18 blocks", ("bf16",)),
    Case("t5, 24 and 24 blocks"),
    Case("gemma2, 34 blocks, every other one sliding", ("recompute",)),
    Case("own, 3 blocks of another kind first"),
)
