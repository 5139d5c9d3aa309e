from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Moment, Seams
from snugfit.errors import SettingError
from snugfit.techniques.learning.stochastic_depth import (
    StochasticDepth,
    dropped_rows,
    residual_blocks,
)
from tests.laws import problems
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(("setting", "value"), [("rate", 0), ("rate", 1.0), ("mode", "layer")])
def test_an_impossible_setting_is_refused(setting: str, value: Any) -> None:
    refuses(StochasticDepth, **{setting: value})


class Block(nn.Module):
    """A residual block that counts its calls, and gives a tuple if asked."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(3, 3), nn.Dropout(0.5)
        self.as_tuple = as_tuple
        self.calls: list[None] = []  # a number would be put back with the buffers
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Any:
        self.calls.append(None)
        self.seen += 1
        hidden = hidden + self.dropout(self.layer(hidden))
        return (hidden, torch.ones(2)) if self.as_tuple else hidden


class Net(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(3, 3)] if len(blocks) > 1 else [])
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            outputs = block(hidden)
            hidden = outputs[0] if getattr(block, "as_tuple", False) else outputs
        return hidden


def seams_of(model: nn.Module, **settings: Any) -> Seams:
    technique = StochasticDepth(**settings)
    return technique.seams(context(technique.prepare(model)))


def run(model: nn.Module, seams: Seams, hidden: Tensor, number: int = 0) -> Tensor:
    assert seams.batch is not None and seams.modules is not None
    window = seams.batch(Batch.of(hidden), Moment(number, number, seed=number))
    with seams.modules(window):
        return model(hidden)


def test_the_blocks_are_those_of_the_longest_list() -> None:
    assert list(residual_blocks(Net(Block(), Block()))) == ["blocks.0", "blocks.1"]


def test_a_pattern_names_blocks_and_nothing_within_them() -> None:
    assert list(residual_blocks(Net(Block(), Block()), "blocks*")) == ["blocks.0", "blocks.1"]
    assert list(residual_blocks(Net(Block(), Block()), "*.1")) == ["blocks.1"]


def test_torchs_layers_are_blocks_where_there_is_no_list() -> None:
    assert list(residual_blocks(nn.Sequential(nn.TransformerEncoderLayer(4, 2)))) == ["0"]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(SettingError, match="stochastic_depth.blocks: the model has no list of blocks"):
        StochasticDepth().prepare(nn.Linear(2, 2))
    with pytest.raises(
        SettingError, match=r"\.blocks: 'block\.\*' matches no module .* Did you mean 'blocks'"
    ):
        StochasticDepth(blocks="block.*").prepare(Net(Block()))
    with pytest.raises(
        SettingError, match=r"\.blocks: 'blocks' is a list of modules.* entries: 'blocks\.\*'"
    ):
        StochasticDepth(blocks="blocks").prepare(Net(Block()))


def test_the_end_of_a_name_is_enough_for_the_blocks_of_a_stock_classifier() -> None:
    model = problems.bert(()).model()
    layers = [f"bert.encoder.layer.{number}" for number in range(len(model.bert.encoder.layer))]
    assert list(residual_blocks(model, "encoder.layer.*")) == list(residual_blocks(model)) == layers


def test_deeper_blocks_are_left_out_more_often_and_the_last_at_the_rate() -> None:
    model = Net(*(Block() for _ in range(4))).eval()
    seams = seams_of(model, rate=0.4)
    assert seams.batch is not None
    keep = seams.batch(Batch.of(torch.zeros(20000, 3)), Moment(0, 0, 5)).extras["stochastic_depth"]
    expected = torch.tensor([0.9, 0.8, 0.7, 0.6])
    torch.testing.assert_close(keep.float().mean(dim=0), expected, atol=0.02, rtol=0)


def test_the_mean_over_many_draws_is_what_the_whole_net_gives() -> None:
    inputs, outputs = torch.randn(1, 3), torch.randn(1, 3)
    rows = 100000
    keep = torch.rand(rows, generator=torch.Generator().manual_seed(0)) >= 0.3
    found = dropped_rows(inputs.expand(rows, 3), outputs.expand(rows, 3), keep, rate=0.3)
    torch.testing.assert_close(found.mean(dim=0), outputs[0], atol=0.02, rtol=0)


@pytest.mark.parametrize("mode", ["row", "window"])
@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_block_that_is_left_out_gives_its_input(mode: str, as_tuple: bool) -> None:
    model = Net(Block(as_tuple)).eval()
    seams = seams_of(model, rate=0.5, mode=mode)
    hidden = torch.randn(6, 3)
    change = Net.forward(model, hidden) - hidden
    factors = set()
    for number in range(8):
        found = (run(model, seams, hidden, number) - hidden).detach() / change.detach()
        for row in found:
            torch.testing.assert_close(row, row[:1].expand(3))
            factors.add(round(float(row[0]), 3))
        assert mode == "row" or len({round(float(f), 3) for f in found.flatten()}) == 1
    assert factors == {0.0, 2.0}


def test_a_window_mode_block_that_is_left_out_is_not_computed() -> None:
    model = Net(Block())
    seams = seams_of(model, rate=0.5, mode="window")
    calls = []
    for number in range(12):
        before = len(model.blocks[0].calls)
        run(model, seams, torch.randn(2, 3), number)
        calls.append(len(model.blocks[0].calls) - before)
    # the first one may look at what a block gives
    assert set(calls[1:]) == {0, 1}


@pytest.mark.parametrize("as_tuple", [False, True])
def test_looking_at_a_block_before_it_is_left_out_draws_and_counts_nothing(as_tuple: bool) -> None:
    model = Net(Block(as_tuple))
    seams = seams_of(model, rate=0.999999, mode="window")
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    run(model, seams, torch.randn(2, 3, generator=torch.Generator().manual_seed(1)))
    assert len(model.blocks[0].calls) == 1 and float(model.blocks[0].seen) == 0
    assert torch.equal(torch.get_rng_state(), expected)


def test_scoring_and_what_comes_after_training_use_every_block_as_it_is() -> None:
    model = Net(Block(), Block()).eval()
    hidden = torch.randn(4, 3)
    plain = model(hidden)
    for mode in ("row", "window"):
        seams = seams_of(model, rate=0.9, mode=mode)
        run(model, seams, hidden)
        assert seams.modules is not None
        with seams.modules(Batch.of(hidden)):
            torch.testing.assert_close(model(hidden), plain, rtol=0, atol=0)
        torch.testing.assert_close(model(hidden), plain, rtol=0, atol=0)
        assert not any("forward" in vars(block) or block._forward_hooks for block in model.blocks)


def test_a_model_that_raises_leaves_no_hook_behind() -> None:
    model = Net(Block(), Block())
    for mode in ("row", "window"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            run(model, seams_of(model, rate=0.9, mode=mode), torch.randn(2, 5))
        assert not any("forward" in vars(block) or block._forward_hooks for block in model.blocks)


@pytest.mark.parametrize("mode", ["row", "window"])
def test_a_block_that_changes_the_shape_is_refused_by_name(mode: str) -> None:
    model = Net(nn.Linear(3, 2))
    with pytest.raises(
        SettingError, match=r"'blocks.0' turns \(4, 3\) into \(4, 2\), so it is no residual block"
    ):
        run(model, seams_of(model, rate=0.5, mode=mode), torch.randn(4, 3))


def test_rows_that_are_not_the_first_dimension_are_refused_by_row_and_taken_by_window() -> None:
    class TimeFirst(Net):
        def forward(self, hidden: Tensor) -> Tensor:
            return super().forward(hidden.transpose(0, 1)).transpose(0, 1)

    model, hidden = TimeFirst(Block()), torch.randn(4, 7, 3)
    with pytest.raises(SettingError, match="stochastic_depth.mode: 'blocks.0' works on .* Use mode: window"):
        run(model, seams_of(model, rate=0.5), hidden)
    assert run(model, seams_of(model, rate=0.5, mode="window"), hidden).shape == hidden.shape


@pytest.mark.parametrize(
    "make", [problems.reader, problems.bert, problems.gpt2, problems.vit, problems.viewer]
)
def test_whole_windows_left_out_split_and_resume_as_rows_do(make: Callable[..., problems.Problem]) -> None:
    """The laws are run on the example, which leaves out rows."""
    techniques = (StochasticDepth(rate=0.5, mode="window"),)
    problem = make(techniques)
    windows = problem.windows(rows=(5,) * 6)
    whole, split = (problems.make_step(problem, techniques, micro_batch=size) for size in (None, 2))
    states = []
    for window in windows:
        whole(window), split(window)
        states.append(problems.saved(split))
        assert problems.relative_error(problems.weights(split), problems.weights(whole)) <= 1e-10
    resumed = problems.make_step(problem, techniques, micro_batch=2, model_seed=2)
    resumed.load_state_dict(states[2])
    for number in range(3, len(windows)):
        resumed(windows[number])
        assert not problems.differences(states[number], problems.saved(resumed))
