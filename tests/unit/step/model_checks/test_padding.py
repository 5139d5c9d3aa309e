"""Padding is cut from micro-batches only where the model computes the same without it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import events, finish, make_training

LENGTHS = (10, 10, 3, 5, 10, 2, 6, 10)
WIDTH = max(LENGTHS)
REAL = torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(1)
MICRO_BATCH = 2
ROUNDING = 1e-5

Mix = Callable[["Reader", Tensor, dict[str, Tensor]], Tensor]


class Reader(nn.Module):
    """An embedding, one layer of attention and a head; `mix` says what is done with the padding."""

    def __init__(self, mix: Mix, *, blind_head: bool = False) -> None:
        super().__init__()
        self.mix = mix
        self.embedding = nn.Embedding(50, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.pool = nn.Identity()
        self.head = nn.Linear(8, 3)
        if blind_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, input_ids: Tensor, **rest: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.mix(self, self.embedding(input_ids), rest)))
        return logits


def _mean(tokens: Tensor, padding: Tensor) -> Tensor:
    return tokens.masked_fill(padding.unsqueeze(-1), 0.0).sum(dim=1) / (~padding).sum(dim=1, keepdim=True)


def masked(model: Reader, tokens: Tensor, rest: dict[str, Tensor]) -> Tensor:
    padding = rest["attention_mask"] == 0
    return _mean(model.layer(tokens, src_key_padding_mask=padding), padding)


def inverted(model: Reader, tokens: Tensor, rest: dict[str, Tensor]) -> Tensor:
    padding = rest["attention_mask"]
    return _mean(model.layer(tokens, src_key_padding_mask=padding), padding)


def additive(model: Reader, tokens: Tensor, rest: dict[str, Tensor]) -> Tensor:
    padding = rest["attention_mask"]
    return _mean(model.layer(tokens, src_key_padding_mask=padding), padding < 0)


def mean_of_all(model: Reader, tokens: Tensor, rest: dict[str, Tensor]) -> Tensor:
    return tokens.mean(dim=1)


def biased(model: Reader, tokens: Tensor, rest: dict[str, Tensor]) -> Tensor:
    bias = rest["bias"].expand(-1, 2, -1, -1).flatten(0, 1)
    return model.layer(tokens, src_mask=bias)[:, 0]  # type: ignore[no-any-return]


def of_fixed_length(model: Reader, tokens: Tensor, rest: dict[str, Tensor]) -> Tensor:
    return (tokens * torch.arange(1.0, WIDTH + 1).unsqueeze(1)).mean(dim=1)


def window(mix: Mix) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(1)
    lowest = torch.zeros(REAL.shape).masked_fill(~REAL, -torch.inf)
    data = {
        "input_ids": torch.randint(1, 50, REAL.shape, generator=source) * REAL,
        "attention_mask": {inverted: ~REAL, additive: lowest}.get(mix, REAL.long()),
        "labels": torch.randint(0, 3, (len(LENGTHS),), generator=source),
    }
    return {**data, "bias": lowest[:, None, None, :].repeat(1, 1, WIDTH, 1)} if mix is biased else data


def reader(mix: Mix, **more: Any) -> Reader:
    torch.manual_seed(0)
    model = Reader(mix, **more)
    model.layer.dropout.p = model.layer.dropout1.p = model.layer.dropout2.p = 0.0
    model.layer.self_attn.dropout = 0.0
    return model


def step_of(model: nn.Module, micro_batch: int | None, **more: Any) -> Step:
    return Step(copy.deepcopy(model), SGD(learning_rate=0.1), micro_batch=micro_batch, **more)


def gradients(step: Step) -> Tensor:
    return torch.cat([each.grad.flatten() for each in step.parameters if each.grad is not None])


@pytest.mark.parametrize(
    ("mix", "is_cut"),
    [
        (masked, True),
        (inverted, False),
        (additive, False),
        (mean_of_all, False),
        (biased, False),
        (of_fixed_length, False),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_micro_batches_give_the_gradient_of_the_window_whatever_is_called_attention_mask(
    mix: Mix, is_cut: bool
) -> None:
    whole, parts = (step_of(reader(mix), size) for size in (None, MICRO_BATCH))
    whole(window(mix)), parts(window(mix))
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=ROUNDING, atol=ROUNDING)
    assert parts.padding.cut is is_cut
    assert parts.padding.message.startswith("cut from" if is_cut else "not cut from")
    assert whole.padding.cut is None, "a window that is not split needs no answer"


def test_a_head_that_gives_zeros_does_not_hide_that_padding_is_looked_at() -> None:
    step = step_of(reader(mean_of_all, blind_head=True), MICRO_BATCH)
    step(window(mean_of_all))
    assert step.padding.cut is False
    assert "'pool' (Identity)" in step.padding.message


def test_cutting_can_be_turned_off() -> None:
    widths: list[int] = []
    step = step_of(reader(masked), MICRO_BATCH, cut_padding=False)
    step.model.embedding.register_forward_hook(lambda _, args, __: widths.append(args[0].shape[1]))
    step(window(masked))
    assert widths == [WIDTH] * 4 and not step.padding.message


def test_padding_is_cut_where_that_is_right() -> None:
    widths: list[int] = []
    step = step_of(reader(masked), MICRO_BATCH)
    step(window(masked))
    step.model.embedding.register_forward_hook(lambda _, args, __: widths.append(args[0].shape[1]))
    step(window(masked))
    assert widths == [10, 5, 10, 10]


def test_the_comparison_leaves_no_trace() -> None:
    model = reader(masked)
    model.layer.dropout.p = 0.5
    model.counted = nn.BatchNorm1d(8)
    model.pool = model.counted
    checked, preset = step_of(model, MICRO_BATCH), step_of(model, MICRO_BATCH)
    preset.padding.cut = True
    before = torch.get_rng_state()
    for _ in range(2):
        checked(window(masked)), preset(window(masked))
    assert torch.equal(torch.get_rng_state(), before)
    assert checked.padding.cut is True and checked.padding.message and not preset.padding.message
    for one, other in zip(
        checked.model.state_dict().values(), preset.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert all(module.training for module in checked.model.modules())


def test_a_resumed_step_cuts_as_the_one_before_without_another_comparison() -> None:
    first, second = step_of(reader(mean_of_all), MICRO_BATCH), step_of(reader(mean_of_all), MICRO_BATCH)
    first(window(mean_of_all))
    second.load_state_dict(first.state_dict())
    assert second.padding.cut is False
    old = {key: value for key, value in first.state_dict().items() if key != "padding"}
    third = step_of(reader(mean_of_all), MICRO_BATCH)
    third.load_state_dict(old)
    assert third.padding.cut is None


def test_a_window_of_rows_that_are_not_finite_decides_nothing() -> None:
    step = step_of(reader(mean_of_all), MICRO_BATCH)
    with torch.no_grad():
        step.model.head.bias.fill_(torch.nan)
    before = step_of(reader(mean_of_all), MICRO_BATCH).padding.settled(step, Batch.of(window(mean_of_all)))
    assert step.padding.cut is None and before.padded == 0


def test_an_evaluation_in_micro_batches_scores_what_one_of_the_whole_does() -> None:
    scores = []
    for size in (None, MICRO_BATCH):
        step = step_of(reader(mean_of_all), size)
        scores.append(evaluate(Scored.of(step), [Batch.of(window(mean_of_all))], {})["loss"])
    assert scores[1] == pytest.approx(scores[0], rel=1e-6)


def test_a_run_says_once_what_was_decided(tmp_path: Path) -> None:
    rows = [{name: value[row] for name, value in window(masked).items()} for row in range(len(LENGTHS))]
    training = make_training(
        tmp_path, model=reader(masked), train=rows, global_batch=4, plan=Plan(micro_batch=MICRO_BATCH)
    )
    finish(training)
    (event,) = events(training, "padding")
    assert event["cut"] is True and event["update"] == 1
