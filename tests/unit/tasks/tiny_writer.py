"""Tiny models that read one text and write another, of T5's and of BART's shape, with a tokenizer of whole words."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = ["[PAD]", "[END]", "[UNK]", "ann", "bob", "rome", "oslo", "good", "bad", "film", "new"]
PAD, END = 0, 1


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer that ends each text."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="$A [END]", special_tokens=[("[END]", END)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        eos_token="[END]",
        unk_token="[UNK]",
        model_max_length=64,
    ).save_pretrained(folder)


def write_t5(folder: Path) -> Path:
    """Write model and tokenizer; weights are those of a seed."""
    write_tokenizer(folder)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(WORDS),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def write_bart(folder: Path) -> Path:
    """Write model and tokenizer; each text that it writes begins with the token that ends texts."""
    write_tokenizer(folder)
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(WORDS),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=32,
        dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=END,
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    return folder


def write_reversed(path: Path, count: int, *, longest: int = 5) -> list[dict[str, str]]:
    """Write rows of some words, and of the same from the last to the first."""
    drawn = random.Random(0)
    rows = []
    for _ in range(count):
        words = [drawn.choice(WORDS[3:]) for _ in range(drawn.randint(1, longest))]
        rows.append({"source": " ".join(words), "target": " ".join(reversed(words))})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows
