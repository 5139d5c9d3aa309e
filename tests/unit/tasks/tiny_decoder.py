"""A tiny decoder without weights, with a tokenizer of letters and a chat template that knows no system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PreTrainedTokenizerFast

from tests.unit.data.texts.test_chat_template import TEMPLATES
from tests.unit.data.texts.test_instruct import by_letters


def letters() -> PreTrainedTokenizerFast:
    """Return the tokenizer."""
    template, marks, _ = TEMPLATES["gemma: no system"]
    return by_letters(template, marks)


def decoder_config(
    tokenizer: PreTrainedTokenizerFast,
    width: int,
    *,
    heads: int = 2,
    positions: int = 128,
    dropout: float = 0.0,
) -> LlamaConfig:
    """Return the configuration of a decoder of two layers for a tokenizer."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        attention_dropout=dropout,
        eos_token_id=tokenizer.eos_token_id,
        architectures=["LlamaForCausalLM"],
    )


def write_decoder(folder: Path, width: int, **shape: Any) -> None:
    """Write the tokenizer and the configuration; the arguments are those of `decoder_config`."""
    tokenizer = letters()
    tokenizer.save_pretrained(folder)
    decoder_config(tokenizer, width, **shape).save_pretrained(folder)
