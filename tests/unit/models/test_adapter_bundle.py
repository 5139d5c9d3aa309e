"""An adapter without its base: the base is read again as it was trained on, of pictures and with rows of new tokens too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from snugfit.kit.adapters.adapters import merged
from snugfit.models.adapter_bundle import Base, leave_base_out
from snugfit.models.bundle import load_bundle, save_bundle
from snugfit.models.huggingface import load_causal_lm
from snugfit.models.tokenizer import load_tokenizer
from snugfit.techniques.learning.lora import lora_
from tests.unit.tasks.tiny_decoder import letters

pytest.importorskip("peft")


def check_read_again(adapted: nn.Module, base: Path, folder: Path, tokenizer: Any = None) -> None:
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    whole = merged(adapted)
    save_bundle(folder / "best", whole, {}, tokenizer, adapters_of=adapted)
    meta = json.loads((folder / "best" / "snugfit.json").read_text())
    leave_base_out(folder / "best", meta, folder / "alone", Base(str(base)))
    again = load_bundle(folder / "alone")[0].state_dict()
    assert again.keys() == whole.state_dict().keys()
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(again[name], weight, rtol=0, atol=1e-6)


def test_the_base_may_be_a_model_of_pictures(tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=4,
        patch_size=2,
    )
    ViTForImageClassification(config).save_pretrained(tmp_path / "base")
    adapted = lora_(ViTForImageClassification.from_pretrained(tmp_path / "base"), rank=2)
    check_read_again(adapted, tmp_path / "base", tmp_path)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("trained", [(), ("<|a|>",), ("<|a|>", "<|b|>")], ids=["none", "one", "both"])
def test_rows_of_new_tokens_are_those_that_it_was_trained_beside(
    trained: Sequence[str], tied: bool, tmp_path: Path
) -> None:
    base, known = tmp_path / "base", letters()
    known.save_pretrained(base)
    config = LlamaConfig(
        vocab_size=len(known),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(base)
    tokenizer = load_tokenizer(base, add=["<|a|>", "<|b|>"])
    adapted = lora_(load_causal_lm(base, tokenizer=tokenizer).model, rank=2, tokens=trained)
    check_read_again(adapted, base, tmp_path, tokenizer)
