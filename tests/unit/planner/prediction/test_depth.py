from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from snugfit.core.technique import Technique
from snugfit.planner.prediction.depth import (
    Blocks,
    Fewer,
    fewer_blocks,
    lists_of_blocks,
    shortened,
    tells_blocks_apart,
)
from snugfit.techniques.learning.freeze import Freeze
from snugfit.techniques.placement.recompute import Recompute


class Block(nn.Module):
    """A layer that knows its number, and may be wider than others."""

    def __init__(self, number: int, width: int = 4) -> None:
        super().__init__()
        self.layer_idx, self.inner = number, nn.Linear(4, width)
        self.inner.number = number


class Stack(nn.Module):
    def __init__(self, blocks: list[nn.Module], layers: int | None = None) -> None:
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(5, 4), nn.ModuleList(blocks), nn.Linear(4, 5)
        if layers is not None:
            self.config = SimpleNamespace(num_hidden_layers=layers)


def alike(count: int) -> list[nn.Module]:
    return [Block(number) for number in range(count)]


def found(model: nn.Module) -> Blocks:
    (blocks,) = lists_of_blocks(model)
    return blocks


def fewest(blocks: Blocks, periods: int) -> int:
    fewer = fewer_blocks([blocks], periods)
    assert fewer is not None
    return fewer.depths[0]


def test_blocks_that_are_alike_repeat_after_one() -> None:
    blocks = found(Stack(alike(16)))
    assert blocks == Blocks("layers", count=16, period=1, irregular=0, start=0)
    assert (fewest(blocks, 3), fewest(blocks, 4)) == (3, 4)


def test_every_third_block_of_another_kind_makes_a_period_of_three() -> None:
    blocks = found(Stack([Block(number, width=8 if number % 3 == 0 else 4) for number in range(48)]))
    assert (blocks.period, blocks.irregular, fewest(blocks, 3), fewest(blocks, 4)) == (3, 0, 9, 12)


def test_first_blocks_of_another_kind_stand_before_the_pattern() -> None:
    blocks = found(Stack([Block(number, width=8 if number < 2 else 4) for number in range(24)]))
    assert (blocks.period, blocks.irregular, fewest(blocks, 4)) == (1, 2, 6)
    assert fewest(blocks, 3) == 5


def test_what_is_left_over_beyond_whole_periods_stays() -> None:
    blocks = Blocks("layers", count=17, period=2, irregular=0, start=0)
    assert fewest(blocks, 4) == 9  # four periods and the odd one


@pytest.mark.parametrize("different", ["frozen", "dtype", "setting"])
def test_blocks_that_differ_otherwise_are_of_other_kinds(different: str) -> None:
    blocks = alike(20)
    if different == "frozen":
        blocks[0].requires_grad_(False)
    elif different == "dtype":
        blocks[0].half()
    else:
        blocks[0].scale = 0.5  # type: ignore[assignment]
    assert found(Stack(blocks)).irregular == 1


def test_several_lists_are_taken_in_the_order_of_the_model_with_their_places_among_all_blocks() -> None:
    model = nn.ModuleDict({"encoder": Stack(alike(16)), "decoder": Stack(alike(18))})
    assert lists_of_blocks(model) == (
        Blocks("encoder.layers", count=16, period=1, irregular=0, start=0),
        Blocks("decoder.layers", count=18, period=1, irregular=0, start=16),
    )


@pytest.mark.parametrize(
    ("lists", "periods", "fewer"),
    [
        ([(24, 1, 1), (24, 1, 1)], 3, Fewer((4, 4), (1, 1))),  # T5
        ([(32, 1, 0), (32, 1, 0)], 4, Fewer((4, 4), (1, 1))),  # Whisper
        (
            [(12, 1, 0), (24, 1, 0)],
            3,
            Fewer((3, 6), (1, 2)),
        ),  # CLIP: two of the pictures' for one of the texts'
        ([(27, 1, 0), (48, 6, 0)], 3, Fewer((12, 18), (3, 6))),  # Gemma 3
        ([(48, 1, 0), (8, 1, 0)], 3, Fewer((3, 8), (1, 0))),  # too short beside the other one
        ([(8, 1, 0)], 6, Fewer((6,), (1,))),
        ([(8, 1, 0)], 7, None),
        ([], 3, None),
    ],
)
def test_several_lists_are_shortened_by_as_many_steps_to_the_fewest_blocks_in_all(
    lists: list[tuple[int, int, int]], periods: int, fewer: Fewer | None
) -> None:
    blocks = [Blocks(str(number), *each, start=0) for number, each in enumerate(lists)]
    assert fewer_blocks(blocks, periods) == fewer


def test_a_list_that_stays_whole_leaves_the_others_alone() -> None:
    lists = [Blocks(name, 24, 1, 0, start) for name, start in (("encoder", 0), ("decoder", 24))]
    assert fewer_blocks(lists, 3, whole=lists[:1]) == Fewer((24, 3), (0, 1))
    assert fewer_blocks(lists, 3, whole=lists) is None


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        Stack(alike(7)),  # as much as runs of three and of four
        Stack([Block(number, width=number + 1) for number in range(20)]),
        Stack([Block(0)] * 20),
        nn.Sequential(*(nn.Linear(width, width + 1) for width in range(1, 21))),
    ],
)
def test_where_too_little_repeats_there_is_nothing_to_leave_out(model: nn.Module) -> None:
    assert lists_of_blocks(model) == ()


def test_a_sequential_is_a_list_of_blocks_too() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(17)))
    assert found(nn.ModuleDict({"body": model})) == Blocks("body", count=17, period=1, irregular=0, start=0)
    assert found(model).count == 17


def test_blocks_are_taken_out_of_the_middle_and_the_others_know_their_numbers() -> None:
    model = Stack(alike(18), layers=18)
    for place, block in enumerate(model.layers):
        block.called = [place]
    shorter = shortened(model, [found(model)], [5])
    assert [block.called for block in shorter.layers] == [[0], [1], [15], [16], [17]]
    assert [block.layer_idx for block in shorter.layers] == [0, 1, 2, 3, 4]
    assert [block.inner.number for block in shorter.layers] == [0, 1, 2, 3, 4]
    assert shorter.config.num_hidden_layers == 5
    assert len(list(shorter.layers.parameters())) == 5 * 2


def test_a_shortened_model_is_a_copy_and_the_model_stays_whole() -> None:
    model = Stack(alike(18), layers=18)
    blocks, weights = list(model.layers), list(model.parameters())
    shorter = shortened(model, [found(model)], [5])
    assert model.config.num_hidden_layers == 18
    assert [block.layer_idx for block in model.layers] == list(range(18))
    assert all(one is other for one, other in zip(model.layers, blocks, strict=True))
    assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))
    assert shorter is not model and all(each.is_meta for each in shorter.parameters())


def test_a_configuration_that_counts_something_else_stays() -> None:
    model = Stack(alike(18), layers=7)
    assert shortened(model, [found(model)], [5]).config.num_hidden_layers == 7


def test_another_stack_keeps_what_its_own_configuration_says() -> None:
    encoder, decoder = Stack(alike(18), layers=18), Stack([Block(0), nn.Linear(4, 4)], layers=18)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    shorter = shortened(model, [found(model)], [5])
    assert shorter.encoder.config.num_hidden_layers == 5
    assert shorter.decoder.config.num_hidden_layers == 18


def test_several_lists_are_shortened_at_once() -> None:
    encoder, decoder = (Stack(alike(count), layers=count) for count in (18, 16))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    shorter = shortened(model, lists_of_blocks(model), (4, 16))
    assert [len(each.layers) for each in (shorter.encoder, shorter.decoder)] == [4, 16]
    shorter = shortened(model, lists_of_blocks(model), (4, 5))
    assert [block.layer_idx for block in shorter.decoder.layers] == [0, 1, 2, 3, 4]
    assert [each.config.num_hidden_layers for each in (shorter.encoder, shorter.decoder)] == [4, 5]


def test_whole_periods_are_taken_out_so_that_the_pattern_stays() -> None:
    model = Stack([Block(number, width=8 if number < 1 or number % 2 else 4) for number in range(35)])
    widths = [block.inner.out_features for block in model.layers]
    blocks = found(model)
    assert (blocks.period, blocks.irregular) == (2, 1)
    depth = fewest(blocks, 4)
    shorter = shortened(model, [blocks], [depth])
    assert [block.inner.out_features for block in shorter.layers] == widths[:depth]


def test_a_shortened_model_runs() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(18)))
    shorter = shortened(model, [found(model)], [6])
    assert shorter(torch.zeros(2, 4, device="meta")).shape == (2, 4)
    assert len(shorter) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("technique", "apart"),
    [
        (Freeze(patterns=("layers.[0-9].*",)), True),
        (Freeze(all_but=("head", "layers.15.*")), True),
        (Freeze(patterns=("layers.*",)), False),
        (Freeze(patterns=("words",)), False),
        (Freeze(patterns=("layers.?*.inner",)), False),
        (Recompute(blocks=("layers.1?",)), True),
        (Recompute(budget="2GiB"), False),
    ],
)
def test_a_pattern_of_numbers_is_of_some_blocks_and_not_of_others(technique: Technique, apart: bool) -> None:
    model = Stack(alike(16))
    assert tells_blocks_apart(technique, model, found(model)) is apart


def test_a_pattern_of_one_kind_of_block_is_of_the_same_ones_in_each_period() -> None:
    model = Stack([nn.Sequential(nn.Linear(4, 4)) if number % 2 else nn.Linear(4, 4) for number in range(40)])
    blocks = found(model)
    assert blocks.period == 2
    assert not tells_blocks_apart(Freeze(patterns=("layers.?*.0",)), model, blocks)
    assert tells_blocks_apart(Freeze(patterns=("layers.1?.0",)), model, blocks)
