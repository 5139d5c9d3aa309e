"""Each rank reads its part of a model's weights, and never has the whole; what is made of the parts is the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from snugfit.core.selection import prepare
from snugfit.core.technique import Technique
from snugfit.kit.sharded_tensors import own_part, whole
from snugfit.models.huggingface import load_causal_lm, load_classifier
from snugfit.step.step import Step
from snugfit.system.malloc import trim_malloc
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.numerics.master_weights import MasterWeights
from snugfit.techniques.numerics.nf4 import NF4
from snugfit.techniques.numerics.pure_bf16 import PureBF16
from snugfit.techniques.placement.recompute import Recompute
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.planner.shards import counting

LABELS = ("bad", "fine", "good")
WIDTH = 48
LLAMA = {
    "vocab_size": 67,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def saved(kind: str, folder: Path) -> Path:
    """A checkpoint with random weights."""
    torch.manual_seed(0)
    bert = {"vocab_size": 67, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 4}
    models: dict[str, PreTrainedModel] = {
        "llama": LlamaForCausalLM(LlamaConfig(**LLAMA)).bfloat16(),
        "llama_tied": LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True)),
        "llama_apart": LlamaForCausalLM(LlamaConfig(**LLAMA)),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=67, n_embd=WIDTH, n_layer=6, n_head=4, n_positions=32)),
        "bert_without_head": BertModel(BertConfig(**bert, num_hidden_layers=6)),
        "bert_with_another_head": BertForSequenceClassification(BertConfig(**bert, num_labels=3)),
    }
    models[kind].save_pretrained(folder)
    return folder


def load(folder: Path, techniques: Sequence[Technique] = (), keep: Any = None) -> PreTrainedModel:
    if "Bert" in (folder / "config.json").read_text():
        return load_classifier(folder, LABELS, techniques=techniques, seed=3, keep=keep).model
    return load_causal_lm(folder, techniques=techniques, seed=3, keep=keep).model


def read(
    folder: Path, strategy: str, techniques: tuple[Technique, ...]
) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Bytes of this rank on the way, and the model that the ranks have together."""
    ways = STRATEGIES[strategy]()
    torch.manual_seed(0)
    with counting() as counted:
        loaded = load(folder, techniques, ways.part)
        model = ways.wrap(prepare(loaded, techniques, seed=0))
    parts = [own_part(each) for each in model.parameters()]
    size = {
        "most": counted.peak,
        "part": sum(each.nbytes for each in parts),
        "whole": sum(each.nbytes for each in model.parameters()),
        "largest": max(each.nbytes for each in model.parameters()),
    }
    found = {name: whole(each) for name, each in model.named_parameters()}
    return size, {**found, **dict(model.named_buffers())}


KINDS = ["llama", "llama_tied", "gpt2", "bert_without_head", "bert_with_another_head"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_ranks_read_in_parts_is_the_model_bit_for_bit(two: Ranks, tmp_path: Path, kind: str) -> None:
    folder = saved(kind, tmp_path)
    model = load(folder)
    expected = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for _, found in two.run(read, folder, "fsdp", ()):
        assert found.keys() == expected.keys()
        assert [name for name, each in found.items() if not torch.equal(each, expected[name])] == []
        assert [name for name, each in found.items() if each.dtype != expected[name].dtype] == []


def test_no_rank_has_more_than_its_part_and_the_weight_that_it_reads(two: Ranks, tmp_path: Path) -> None:
    """As it is stored in 16 bits, in 32, and the part of it."""
    for size, _ in two.run(read, saved("llama", tmp_path), "fsdp", ()):
        assert size["most"] <= size["part"] + 2 * size["largest"]
        assert size["most"] < 0.7 * size["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp-zero2", "fsdp-offload", "fsdp-hybrid"])
def test_each_way_to_shard_reads_in_parts(four: Ranks, tmp_path: Path, strategy: str) -> None:
    folder = saved("llama", tmp_path)
    expected = dict(load(folder).named_parameters())
    for size, found in four.run(read, folder, strategy, ()):
        assert all(torch.equal(found[name], each) for name, each in expected.items())
        assert size["most"] <= size["part"] + 2 * size["largest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "techniques", [(LoRA(rank=2),), (PureBF16(),), (MasterWeights(),), (Recompute(),)], ids=str
)
def test_techniques_that_read_no_weights_find_the_model_as_it_would_be(
    two: Ranks, tmp_path: Path, techniques: tuple[Technique, ...]
) -> None:
    folder = saved("llama", tmp_path)
    torch.manual_seed(0)
    expected = dict(prepare(load(folder, techniques), techniques, seed=0).named_parameters())
    assert not any(each.reads_weights for each in techniques)
    for _, found in two.run(read, folder, "fsdp", techniques):
        assert all(torch.equal(found[name], each) for name, each in expected.items())
        assert all(found[name].dtype == each.dtype for name, each in expected.items())


def test_techniques_that_look_at_weights_say_so() -> None:
    assert LoRA(dora=True).reads_weights
    assert NF4().reads_weights
    assert not AdamW().reads_weights


def trained(folder: Path, in_parts: bool) -> list[Tensor]:
    """The weights after two updates, in the second of which a rank has no row."""
    way = STRATEGIES["fsdp"]()
    model = load(folder, (), way.part if in_parts else None)
    step = Step(
        model,
        AdamW(learning_rate=0.01),
        "causal_lm",
        micro_batch=1,
        strategy=way,
        forward=lambda model, batch: model(input_ids=batch["input_ids"]).logits,
    )
    tokens = torch.arange(40).reshape(4, 10) * 7 % LLAMA["vocab_size"]  # type: ignore[operator]
    for rows in (4, 1):
        window = {"input_ids": tokens[:rows], "labels": tokens[:rows]}
        step(part_of(step, window))
    return [whole(each) for each in step.model.parameters()]


@pytest.mark.slow
def test_ranks_that_read_parts_make_the_updates_of_ranks_that_read_all(two: Ranks, tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)
    in_parts, whole_ = (two.run(trained, folder, each) for each in (True, False))
    for found, expected in zip(in_parts, whole_, strict=True):
        assert all(map(torch.equal, found, expected))


def with_tokens(folder: Path, strategy: str) -> tuple[list[bool], dict[str, Tensor]]:
    """Whether the rows of tokens that train have moved, and all weights, after two updates, in the second of which a rank has no row."""
    way, techniques = STRATEGIES[strategy](), (LoRA(rank=2, tokens=(3, 17)),)
    step = Step(
        load(folder, techniques),
        AdamW(learning_rate=0.01),
        "causal_lm",
        techniques,
        micro_batch=1,
        strategy=way,
        forward=lambda model, batch: model(input_ids=batch["input_ids"]).logits,
    )
    before = {name: whole(each).clone() for name, each in step.model.named_parameters()}
    tokens = torch.tensor([[3, 1, 17, 2], [5, 3, 6, 17], [17, 8, 9, 3], [3, 17, 3, 17]])
    for rows in (4, 1):
        window = {"input_ids": tokens[:rows], "labels": tokens[:rows]}
        step(part_of(step, window))
    weights = {name: whole(each) for name, each in step.model.named_parameters()}
    moved = [not torch.equal(before[name], weights[name]) for name in weights if "tokens_delta" in name]
    return moved, weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama_tied", "llama_apart"])
def test_rows_of_tokens_beside_an_adapter_train_on_two_ranks_as_on_one(
    two: Ranks, tmp_path: Path, kind: str
) -> None:
    folder = saved(kind, tmp_path)
    moved, expected = with_tokens(folder, "alone")
    assert len(moved) == (1 if kind == "llama_tied" else 2) and all(moved), sorted(expected)
    for _, found in two.run(with_tokens, folder, "fsdp"):
        assert found.keys() == expected.keys()
        for name, each in expected.items():
            torch.testing.assert_close(
                found[name], each, rtol=1e-5, atol=1e-5
            )  # beside 1e-2 that an update moves


def anonymous_bytes() -> int:
    """What this process has of memory that no file backs."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def bytes_in_use() -> int:
    """Return what is left of them when the allocator has given back what is free."""
    trim_malloc()
    return anonymous_bytes()


def gathered(folder: Path, width: int) -> tuple[int, list[Tensor]] | None:
    """What the first rank takes of memory for the whole model, and its weights."""
    torch.manual_seed(0)
    way = STRATEGIES["fsdp"]()
    model = way.wrap(torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(8))))
    way.whole(model, folder)  # what exchanges keep is there afterwards
    before = bytes_in_use()
    found = way.whole(model, folder)
    if found is None:
        return None
    taken = bytes_in_use() - before
    return taken, [each.detach().clone() for each in found.parameters()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what files back")
def test_the_first_rank_gathers_the_model_in_files_that_leave_nothing_behind(
    two: Ranks, tmp_path: Path
) -> None:
    width = 512
    first, second = two.run(gathered, tmp_path, width)

    torch.manual_seed(0)
    expected = [torch.nn.Linear(width, width, bias=False).weight for _ in range(8)]
    assert second is None
    taken, weights = first
    assert all(map(torch.equal, weights, expected))
    assert taken < 4 * expected[0].nbytes  # of eight
    assert list(tmp_path.iterdir()) == []
