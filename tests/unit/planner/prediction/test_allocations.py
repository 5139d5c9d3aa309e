"""The stream of allocations of many blocks is told by those of few, event for event."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import transformers

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.planner.cost.allocator import replay
from snugfit.planner.cost.records import Op, Phase, Place, Storage, Trace
from snugfit.planner.prediction.allocations import Allocations, Change, Pieces, carried_on, flat
from snugfit.planner.prediction.depth import fewer_blocks
from snugfit.planner.prediction.extrapolate import Axis, NotLinear, stretch
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.target import Target, machine_of
from snugfit.planner.trace.dry_run import Subject
from snugfit.planner.trace.segments import Key
from snugfit.planner.worker import Worker
from snugfit.techniques import find

DEEP = 13


class Recording:
    """A stream that is written down by hand, of tensors with names."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.changes: list[tuple[int, int, int]] = []
        self.numbers: dict[str, tuple[int, int]] = {}

    def piece(self, phase: Phase, block: int = -1, part: int = 0) -> None:
        self.keys.append(Key(0, phase, 0, 0, part, block))

    def make(self, name: str, size: int) -> None:
        self.numbers[name] = len(self.changes), size
        self.changes.append((len(self.keys) - 1, len(self.changes), size))

    def free(self, *names: str) -> None:
        for number, size in map(self.numbers.pop, names):
            self.changes.append((len(self.keys) - 1, number, -size))

    @property
    def pieces(self) -> Pieces:
        pieces, numbers, sizes = np.array(self.changes, dtype=np.int64).T
        return Allocations(tuple(self.keys), pieces, numbers, sizes).by_piece()


Own = Callable[[Recording, int], None]
SHAPES = (40, 20, 20, 9)
"""Bytes of each block's weights."""


def parameters(depth: int) -> list[tuple[str, int]]:
    """Return the names and the bytes of a model's weights, of which the last norm is like one of a block."""
    blocks = ((f"{block}.{place}", size) for block in range(depth) for place, size in enumerate(SHAPES))
    return [("table", 100), *blocks, ("norm", 9), ("head", 100)]


def step(depth: int, update: Own) -> Pieces:
    """Return the stream of a step: weights, a forward that keeps something of each block, a backward, and an update.

    The first block makes what all others read, and another list of blocks comes behind them, as in a T5.
    """
    made = Recording()
    made.piece(Phase.SETUP)
    for name, size in parameters(depth):
        made.make(name, size)
    made.piece(Phase.FORWARD)
    made.make("hidden", 5)
    for block in range(depth):
        made.piece(Phase.FORWARD, block)
        made.make(f"kept {block}", 7)
        made.make("next", 5)
        made.free("hidden")
        made.numbers["hidden"] = made.numbers.pop("next")
        if block == 0:
            made.make("bias", 3)
    made.free("bias")
    for block in range(2):
        made.piece(Phase.FORWARD, depth + block)
        made.make(f"read {block}", 6)
    made.piece(Phase.BACKWARD)
    made.make("gradient of head", 100)
    made.free("hidden")
    for block in (1, 0):
        made.piece(Phase.BACKWARD, depth + block)
        made.free(f"read {block}")
    made.make("gradient", 5)
    for block in reversed(range(depth)):
        made.piece(Phase.BACKWARD, block)
        made.make("temporary", 7)
        if block == depth - 1:
            made.make("gradient of bias", 3)
        for place, size in enumerate(SHAPES):
            made.make(f"gradient of {block}.{place}", size)
        made.free("gradient")
        made.make("gradient", 5)
        made.free(f"kept {block}", "temporary")
    made.free("gradient of bias", "gradient")
    made.make("gradient of table", 100)
    made.make("gradient of norm", 9)
    made.piece(Phase.OPTIMIZER)
    update(made, depth)
    return made.pieces


def as_lists(made: Recording, depth: int) -> None:
    """Each operation over all weights at once; a tensor with a number for each of them is among them, and sets have no order."""
    names = parameters(depth)
    for name, size in names:
        made.make(f"square of {name}", size)
    made.make("norms", 4 * len(names))
    made.make("total", 4)
    made.free("norms")
    shuffled = random.Random(depth).sample(names, len(names))
    made.free(*(f"square of {name}" for name, _ in shuffled), "total")
    made.free(*(f"gradient of {name}" for name, _ in shuffled))


def one_by_one(made: Recording, depth: int) -> None:
    """One weight after the other, each with a temporary, and its gradient let go of."""
    for name, size in parameters(depth):
        made.make("square", size)
        made.make("root", size)
        made.free("square", f"gradient of {name}")
        made.free("root")


def backwards(made: Recording, depth: int) -> None:
    """The last weight first."""
    for name, size in parameters(depth)[::-1]:
        made.make(f"state of {name}", 2 * size)
        made.free(f"gradient of {name}")
    for name, size in parameters(depth):
        made.make("square", size)
        made.free("square", f"state of {name}")


def into_the_next_passes(made: Recording, depth: int) -> None:
    """What one piece makes of all weights goes block by block in another pass."""
    for name, size in parameters(depth):
        made.make(f"state of {name}", size)
    _freed_by_blocks(made, depth)


def backwards_into_the_next_passes(made: Recording, depth: int) -> None:
    """The same, made of the last weight first."""
    for name, size in parameters(depth)[::-1]:
        made.make(f"state of {name}", size)
    _freed_by_blocks(made, depth)


def _freed_by_blocks(made: Recording, depth: int) -> None:
    for block in reversed(range(depth)):
        made.piece(Phase.BACKWARD, block, part=1)
        made.make("one", 3)
        made.free(*(f"state of {block}.{place}" for place in range(len(SHAPES))))
        made.free("one")


def alike_within_a_block(made: Recording, depth: int) -> None:
    """A list of which a part of each block repeats too, and what follows the blocks begins like one."""
    for number, size in enumerate([*(20, 20, 20, 20, 9) * depth, 20, 20, 20, 50]):
        made.make(f"one {number}", size)


UPDATES = (as_lists, one_by_one, backwards, into_the_next_passes, alike_within_a_block)


@pytest.mark.parametrize(
    ("update", "base"),
    [*itertools.product(UPDATES, (4, 5)), (backwards_into_the_next_passes, 4)],
)
def test_a_deep_stream_is_told_event_for_event(update: Own, base: int) -> None:
    whole = step(DEEP, update)
    made = carried_on(step(base, update), step(base + 1, update), Axis("block", base, DEEP), [*whole])
    assert made == whole
    assert [*made] == [*whole]
    assert replay(flat(made)) == replay(flat(whole))


def pairs_of_blocks(made: Recording, depth: int) -> None:
    """Memory that grows with the square of the depth."""
    made.make("pairs", 1000 * depth * depth)


def fewer(made: Recording, depth: int) -> None:
    for number in range(DEEP - depth):
        made.make(f"one of fewer {number}", 50)


def unlike(made: Recording, depth: int) -> None:
    for number in range(depth):
        made.make(f"one {number}", 50 + number)


def test_what_is_on_no_line_is_not_what_a_third_depth_has() -> None:
    one, two, three = (step(depth, pairs_of_blocks) for depth in (4, 5, 6))
    assert carried_on(one, two, Axis("block", 4, 6), [*three]) != three


def all_at_the_first_block(made: Recording, depth: int) -> None:
    for name, size in parameters(depth):
        made.make(f"state of {name}", size)
    made.piece(Phase.BACKWARD, 0, part=1)
    made.free(*(f"state of {name}" for name, _ in parameters(depth)))


def only_of_odd_depth(made: Recording, depth: int) -> None:
    if depth % 2:
        made.piece(Phase.SAVE)
        made.make("more", 1)


@pytest.mark.parametrize("update", [fewer, unlike, all_at_the_first_block, only_of_odd_depth])
def test_what_does_not_repeat_is_refused(update: Own) -> None:
    with pytest.raises(NotLinear):
        carried_on(step(4, update), step(5, update), Axis("block", 4, DEEP), [*step(DEEP, update)])


def test_a_list_that_is_made_backwards_of_an_odd_number_of_blocks_is_refused_where_blocks_free_it() -> None:
    """Which of its stretches is that of the block in the middle is told by its place, which is another one backwards."""
    one, two, whole = (step(depth, backwards_into_the_next_passes) for depth in (5, 6, DEEP))
    with pytest.raises(NotLinear, match="one of many"):
        carried_on(one, two, Axis("block", 5, DEEP), [*whole])


def test_a_piece_of_a_trace_has_what_happens_until_the_next_one_begins() -> None:
    """Of memory of no bytes nothing is asked for; what is there before the first operator counts in its piece."""
    places = [Place(0, phase, 0, 0, "", -1) for phase in (Phase.SETUP, Phase.DATA)]
    ops = [
        Op("aten.empty.default", place, "cuda", torch.float32, 0, 0, 0, event)
        for place, event in zip(places, (1, 3), strict=True)
    ]
    storages = [Storage(size, "cuda", 0) for size in (8, 0, 16, 32)]
    stream = Allocations.of(Trace(ops, storages, [1, 2, 3, 4, -1, -2]), "cuda")
    setup, data = stream.keys
    assert stream.by_piece() == {
        setup: [Change(8, setup, 0), Change(16, setup, 1)],
        data: [Change(32, data, 0), Change(-8, setup, 0)],
    }
    assert [*stream] == [(0, 8), (2, 16), (3, 32), (0, -8)]


def test_what_no_piece_before_allocates_is_refused() -> None:
    order = [key for key in step(DEEP, one_by_one) if key.phase is not Phase.FORWARD]
    with pytest.raises(NotLinear, match="nowhere before"):
        carried_on(step(4, one_by_one), step(5, one_by_one), Axis("block", 4, DEEP), order)


def test_a_piece_that_no_run_has_is_refused() -> None:
    order = [*step(DEEP, one_by_one), Key(0, Phase.SAVE, 0, 0, 0, -1)]
    with pytest.raises(NotLinear, match="no piece to take"):
        carried_on(step(4, one_by_one), step(5, one_by_one), Axis("block", 4, DEEP), order)


def test_two_pieces_of_one_key_are_refused() -> None:
    made = Recording()
    for name in ("one", "two"):
        made.piece(Phase.SETUP)
        made.make(name, 1)
    with pytest.raises(NotLinear, match="one key"):
        _ = made.pieces


MODELS: dict[str, dict[str, int]] = {
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 17, "n_head": 2},
    "T5ForConditionalGeneration": {
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 20,
        "decoder_start_token_id": 0,
        "num_heads": 2,
    },
    "Gemma2ForCausalLM": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
}
"""One list of blocks, two of them, and blocks of two kinds in turns."""

CASES = (
    ("GPT2LMHeadModel", ("adamw_8bit", "pure_bf16", "gradient_offload"), 3),
    ("GPT2LMHeadModel", ("adamw", "recompute", "activation_offload"), 1),
    ("T5ForConditionalGeneration", ("adamw", "bf16", "clip_norm"), 1),
    ("Gemma2ForCausalLM", ("adamw", "lora", "nf4", "weight_streaming"), 1),
)


def _told_and_run(model: str, names: Sequence[str], micro_batch: int) -> tuple[Pieces, Pieces]:
    """Return the stream of all blocks, as few of them tell it and as a run of them has it."""
    config_of = getattr(transformers, model).config_class
    with torch.device("meta"):
        network = getattr(transformers, model)(config_of(vocab_size=100, **MODELS[model]))
    ids = torch.zeros(3, 16, dtype=torch.int64)
    window = Batch.of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    techniques = tuple(find(name).example() for name in names)
    job = Job.of(global_batch=3, updates=2)
    subject = Subject(lambda: copy.deepcopy(network), window, job, 3, techniques, "causal_lm")
    plan = Plan(device="cuda", micro_batch=micro_batch)
    with machine_of(Target(device="rtx4090")) as machine:
        planner = Planner(subject, machine)
        base = fewer_blocks(planner.lists, 5, whole=planner.lists[1:])
        assert base is not None
        one, two, whole = (
            planner.run(plan, techniques, depths, None) for depths in (base.depths, base.longer(1), None)
        )
    (axis,) = planner._axes(base)
    order = [each.key for each in stretch(one.segments, two.segments, axis)]
    told = carried_on(one.allocations.by_piece(), two.allocations.by_piece(), axis, order)
    return told, whole.allocations.by_piece()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "names", "micro_batch"), CASES)
def test_what_few_blocks_tell_is_what_all_of_them_allocate(
    model: str, names: tuple[str, ...], micro_batch: int
) -> None:
    told, whole = Worker().run(_told_and_run, model, names, micro_batch, timeout=300)
    assert sum(map(len, whole.values())) > 1000
    assert told == whole
