"""A tiny encoder whose tokenizer cuts words into pieces, for the tests of tasks on texts."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "ann", "bob", "lives", "met", "in", "rome", "oslo", "new", "york", ".", "##s", "and",
    "good", "bad", "not", "very", "film", "food",
]  # fmt: skip


def write_encoder(folder: Path, *, mask: bool = False, tokens: int = 64) -> Path:
    """Write model and tokenizer for so many `tokens`, with one that hides others or without; weights are those of a seed."""
    pieces = [*PIECES, *(["[MASK]"] if mask else [])]
    tokenizer = Tokenizer(
        models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]" if mask else None,
        model_max_length=tokens,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=tokens,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    return folder
