"""Rank: any number of ranks gives the update of one, for every technique that several devices can have, and every pair of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from snugfit.core.selection import in_order
from snugfit.core.technique import Technique
from tests.laws import problems
from tests.ranks.law import agree_on_ranks, allowed, block_of, in_whole_blocks, reader_in_float32
from tests.ranks.pool import Ranks
from tests.samples import some_of

Techniques = tuple[Technique, ...]


def allowed_on(strategy: str, given: Iterable[Techniques]) -> list[Techniques]:
    return [techniques for techniques in given if allowed(techniques, strategy)]


PAIRS = problems.legal_pairs()


SAMPLE = problems.covering([pair for pair in allowed_on("ddp", PAIRS) if allowed(pair, "fsdp")])
SLOW = {"ddp": SAMPLE[::2], "fsdp": SAMPLE[1::2]}


def sampled(strategy: str) -> list[Any]:
    """Every pair that ranks can have. Those in which each technique meets each seam, by one strategy or the other, are not for a release alone."""
    return some_of(allowed_on(strategy, PAIRS), SLOW[strategy], problems.name_of)


@pytest.mark.slow
@pytest.mark.parametrize("techniques", allowed_on("ddp", problems.singles()), ids=problems.name_of)
def test_two_ranks_with_copies_give_the_update_of_one(two: Ranks, techniques: Techniques) -> None:
    buckets = "ddp_buckets"  # as of a model whose gradients fill some
    agree_on_ranks(two, problems.main, techniques, buckets)


@pytest.mark.slow
@pytest.mark.parametrize("techniques", allowed_on("fsdp", problems.singles()), ids=problems.name_of)
def test_two_ranks_with_shards_give_the_update_of_one(two: Ranks, techniques: Techniques) -> None:
    agree_on_ranks(two, in_whole_blocks(techniques), techniques, "fsdp")


@pytest.mark.slow
def test_weights_have_states_of_few_bits_on_two_ranks_where_they_have_them_alone() -> None:
    """Where a rank's rows are not whole blocks it keeps 32 bits, and would be compared with what is rounded."""
    tried = 0
    for techniques in allowed_on("fsdp", [*problems.singles(), *PAIRS]):
        block = block_of(techniques)
        if block is None:
            continue
        model = in_whole_blocks(techniques)(techniques).model()
        for technique in in_order(techniques, "prepare"):
            model = technique.prepare(model)
        for name, weight in model.named_parameters():
            if weight.requires_grad and weight.numel() % block == 0:
                rows = -(-len(weight) // 2)
                tried += 1
                assert rows * weight[0].numel() % block == 0, f"{name} with {problems.name_of(techniques)}"
    assert tried > 100


@pytest.mark.slow
@pytest.mark.parametrize("pair", sampled("ddp"), ids=problems.name_of)
def test_two_techniques_give_on_two_ranks_with_copies_the_update_of_one(two: Ranks, pair: Techniques) -> None:
    small = len(problems.name_of(pair)) % 2  # in one message without DDP, or in buckets
    agree_on_ranks(two, problems.main, pair, "ddp" if small else "ddp_buckets")


@pytest.mark.slow
@pytest.mark.parametrize("pair", sampled("fsdp"), ids=problems.name_of)
def test_two_techniques_give_on_two_ranks_with_shards_the_update_of_one(two: Ranks, pair: Techniques) -> None:
    agree_on_ranks(two, in_whole_blocks(pair), pair, "fsdp")


def some(*names: str) -> Any:
    """The examples of these techniques, each alone or those joined by + together."""
    sets = [problems.fitted(problems.find_examples(*filter(None, name.split("+")))) for name in names]
    return pytest.mark.parametrize("techniques", sets, ids=problems.name_of)


UNEVEN = (7, 1, 5)
"""Of the second window rank 1 has no row; of the third it has one micro-batch, and rank 0 has two."""


@some(
    "",
    "hard_examples",
    "gradient_cache",
    "packing",
    "sequence_length",
    "hidden_mixup",
    "sam",
    "stochastic_depth",
    "chunked_loss",
)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_with_fewer_rows_and_none_give_the_update_of_one(
    two: Ranks, techniques: Techniques, strategy: str
) -> None:
    agree_on_ranks(two, problems.main, techniques, strategy, rows=UNEVEN)


@pytest.mark.slow
@some(
    "",
    "clip_norm",
    "lora",
    "nf4+lora",
    "recompute",
    "ema",
    "sam",
    "muon",
    "adafactor+lora",
    "chunked_loss",
    "hard_examples",
    "master_weights+clip_norm",
    "master_weights+optimizer_offload",
)
@pytest.mark.parametrize("strategy", ["fsdp-zero2", "reduce_once", "fsdp-offload"])
def test_each_way_to_shard_gives_the_update_of_one_rank(
    two: Ranks, techniques: Techniques, strategy: str
) -> None:
    agree_on_ranks(two, problems.main, techniques, strategy, rows=UNEVEN)


@pytest.mark.slow
@some("", "clip_norm+ema", "hard_examples", "gradient_cache", "nf4+lora", "muon", "gradient_noise", "sam")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp-hybrid"])
def test_four_ranks_give_the_update_of_one(four: Ranks, techniques: Techniques, strategy: str) -> None:
    agree_on_ranks(four, problems.main, techniques, strategy, rows=(9, 2, 5))


@pytest.mark.slow
@some("", "lora", "recompute")
def test_weights_that_are_gathered_in_bf16_give_the_update_of_float32_but_for_rounding(
    two: Ranks, techniques: Techniques
) -> None:
    agree_on_ranks(two, reader_in_float32, techniques, "computes_in_bf16", rows=(7,), tolerance=0.05)
