"""Rows of some tokens train beside adapters, are saved with them in peft's format, and merged into plain embeddings and heads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig, LlamaForCausalLM

from snugfit.errors import ModelError, SettingError
from snugfit.kit.adapters.adapter_files import load_adapter, save_adapter
from snugfit.kit.adapters.adapters import adapter_parameters, adapters_off, merge_, merged, unmerge_
from snugfit.kit.adapters.embedding_rows import note_tokenizer
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.lora import LoRA, lora_
from tests.unit.tasks.tiny_decoder import letters

pytest.importorskip("peft")

NEW = [17, 19]
IDS = torch.tensor([[2, 17, 6, 19], [2, 7, 19, 3]])
BATCH = {"input_ids": IDS, "labels": IDS.clone()}
MERGED = {"rtol": 1e-4, "atol": 1e-5}


def llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(IDS).logits
    return result


def trained(tied: bool, *techniques: Any) -> Step:
    lora = LoRA(rank=3, tokens=tuple(NEW))
    step = Step(
        llama(tied),
        AdamW(learning_rate=0.05, weight_decay=0.1),
        techniques=[lora, *techniques],
        loss="causal_lm",
    )
    for _ in range(3):
        step(BATCH)
    step.model.eval()
    return step


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_these_rows_alone_learn_and_the_merged_model_is_plain_with_them(tied: bool) -> None:
    model = trained(tied).model
    plain: Any = merged(model)
    torch.testing.assert_close(logits(plain), logits(model), **MERGED)
    assert plain.state_dict().keys() == llama(tied).state_dict().keys()
    assert (plain.lm_head.weight is plain.model.embed_tokens.weight) is tied
    start: Any = llama(tied)
    for before, after in (
        (start.model.embed_tokens.weight, plain.model.embed_tokens.weight),
        (start.lm_head.weight, plain.lm_head.weight),
    ):
        moved = (before != after).any(dim=1).nonzero().flatten().tolist()
        assert moved == NEW
    rows = sum(each.numel() for each in adapter_parameters(model) if each.shape == (len(NEW), 16))
    assert rows == len(NEW) * 16 * (1 if tied else 2)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_peft_itself_and_this_load_the_saved_rows_on_the_base(tied: bool, tmp_path: Path) -> None:
    from peft import PeftModel

    model = trained(tied).model
    save_adapter(model, tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    rows = {name: tensor.shape for name, tensor in saved.items() if "lora_" not in name}
    assert set(rows.values()) == {(len(NEW), 16)} and len(rows) == (1 if tied else 2)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert all(each == NEW for each in config["trainable_token_indices"].values())
    base: Any = llama(tied)
    torch.testing.assert_close(
        logits(PeftModel.from_pretrained(base, str(tmp_path)).eval()), logits(model), rtol=0, atol=1e-6
    )
    again = load_adapter(llama(tied), tmp_path).eval()
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-6)
    assert {name for name, each in again.named_parameters() if each.requires_grad} == {
        name for name, each in model.named_parameters() if each.requires_grad
    }


def test_rows_of_other_tokens_are_not_taken_for_these(tmp_path: Path) -> None:
    save_adapter(lora_(llama(True), rank=2, tokens=[17]), tmp_path)
    load_adapter(lora_(llama(True), rank=2, tokens=[17]), tmp_path)
    with pytest.raises(ModelError, match="trained with trainable_token_indices"):
        load_adapter(lora_(llama(True), rank=2, tokens=[19]), tmp_path)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_without_the_adapter_the_base_is_what_it_was_and_merging_is_undone(tied: bool) -> None:
    model = trained(tied).model
    with adapters_off(model):
        assert torch.equal(logits(model), logits(llama(tied)))
    before = copy.deepcopy(model.state_dict())
    expected = logits(model)
    originals = merge_(model)
    torch.testing.assert_close(logits(model), expected, **MERGED)
    unmerge_(model, originals)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_loss_in_chunks_has_the_gradient_of_the_whole(tied: bool) -> None:
    whole, chunked = trained(tied), trained(tied, find("chunked_loss")(chunk=2))
    for one, other in zip(whole.model.parameters(), chunked.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_rows_learn_beside_a_base_in_four_bits() -> None:
    pytest.importorskip("bitsandbytes")
    model = trained(False, find("nf4")()).model
    torch.testing.assert_close(logits(merged(model)), logits(model), rtol=1e-3, atol=1e-4)


def test_a_plan_needs_no_numbers() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = LoRA(rank=2, tokens=(17,)).prepare(llama(False))
    assert any(parameter.shape == (1, 16) for parameter in adapter_parameters(model))


def test_tokens_are_found_as_the_tokenizer_writes_them_by_copies_too() -> None:
    tokenizer = letters()
    model = llama(False)
    model.resize_token_embeddings(len(tokenizer))
    note_tokenizer(model, tokenizer)
    word = tokenizer.convert_ids_to_tokens(5)
    prepared: Any = LoRA(rank=2, tokens=(word,)).prepare(copy.deepcopy(model))
    assert prepared.lm_head.token_adapter.token_indices == {"default": [5]}
    with pytest.raises(SettingError, match="'<nowhere>' is no token of the model's tokenizer"):
        lora_(model, tokens=["<nowhere>"])


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4)), {"tokens": [1]}, "embeds no tokens"),
        (llama(False), {"tokens": [20]}, "token 20 has no row"),
        (llama(False), {"tokens": [-1]}, "expected the number of a token"),
        (llama(False), {"tokens": ["a"]}, "no tokenizer came with the model"),
        (llama(False), {"tokens": [1], "head": ["lm_head"]}, "trains already, by lora.head"),
        (llama(False), {"tokens": [1], "targets": ["embed_tokens"]}, "trains already, by lora.targets"),
    ],
    ids=["no tokens", "no row", "below zero", "no tokenizer", "head", "target"],
)
def test_what_has_no_such_rows_is_refused(model: nn.Module, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        lora_(model, rank=2, **settings)
