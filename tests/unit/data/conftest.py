from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "good",
    "bad",
    "film",
    "book",
    "a",
    "the",
    "NA",
    "null",
    "and",
    "very",
]


def word_tokenizer(template: str = "[CLS] $A [SEP]", **special: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template != "$A":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = special or {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64, **names
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Words to ids, framed by [CLS] (2) and [SEP] (3), padded with 0, unknown words 1."""
    return word_tokenizer()


@pytest.fixture(scope="session")
def make_tokenizer():
    """A tokenizer of the same words with another frame or other special tokens."""
    return word_tokenizer


@pytest.fixture
def write(tmp_path: Path):
    """Write a file below the test's folder: text as UTF-8, or bytes as they are."""

    def writer(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return writer
