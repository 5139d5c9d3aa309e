"""The range test raises the rate as it says, reads the loss, ends in time and leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.tools.find_lr.measure import RangeTest, find_lr, parts_of
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved
from tests.unit.tools.find_lr.test_lr_rules import averages


def windows(count: int, rows: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """Two clouds of points, one for each label."""
    source = torch.Generator().manual_seed(3)
    for _ in range(count):
        labels = torch.randint(0, 2, (rows,), generator=source)
        yield torch.randn(rows, 4, generator=source) + 2 * labels.unsqueeze(1), labels


def classifier(*techniques: Technique, optimizer: Any = None) -> sf.Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return sf.Step(model, optimizer or sf.SGD(learning_rate=0.5), techniques=techniques, total_updates=50)


def test_the_curve_is_that_of_a_loop_written_by_hand() -> None:
    plain = sf.SGD(learning_rate=0.5, momentum=0.0)
    step = classifier(optimizer=plain)
    found = find_lr(step, windows(30), start=1e-3, end=1.0, updates=30, smoothing=0.8)
    model = classifier().model
    losses, rates = [], [1e-3 * 1000 ** (number / 29) for number in range(30)]
    for rate, (inputs, labels) in zip(rates, windows(30), strict=True):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= rate * gradient
        losses.append(loss.item())
    assert [reading.learning_rate for reading in found.curve] == pytest.approx(rates)
    assert [reading.loss for reading in found.curve] == pytest.approx(losses, rel=1e-5)
    assert [reading.smoothed for reading in found.curve] == pytest.approx(averages(losses, 0.8), rel=1e-5)
    assert found.stopped == "the end of the range" and found.num_skipped == 0


@pytest.mark.parametrize(
    "techniques",
    [
        (sf.SAM(), sf.ClipNorm(1.0), sf.EMA(), sf.OneCycle(), sf.SGD(learning_rate=0.1, momentum=0.9)),
        (sf.OptimizerInBackward(), sf.AdamW(learning_rate=0.1), sf.Cosine(warmup=5)),
        (sf.ScheduleFree(learning_rate=0.1),),
        (sf.AdamW(learning_rate=0.1), sf.FP16()),
        (sf.AdamW(learning_rate=0.1), sf.Plateau(), sf.LayerRates()),
        (sf.Muon(), sf.SpikeGuard(), sf.GradualUnfreeze(every=2)),
    ],
    ids=problems.name_of,
)
def test_it_works_with_the_techniques_of_the_run_and_leaves_no_trace(
    techniques: tuple[Technique, ...],
) -> None:
    problem = problems.main(techniques)
    tried, never = (make_step(problem, techniques, micro_batch=4, dropout=0.3) for _ in range(2))
    first, second, _ = problem.windows()
    given = problem.windows() * 5
    tried(first), never(first)
    before = saved(tried)
    found = find_lr(tried, given, start=1e-6, end=1e3, updates=15)
    assert not differences(before, saved(tried))
    tried(second), never(second)
    assert not differences(saved(never), saved(tried))
    assert len(found.curve) >= 10
    losses = [reading.loss for reading in found.curve]
    assert max(losses[-3:]) > 2 * losses[0] or not math.isfinite(losses[-1]), (
        "the rates have reached the weights"
    )


def test_each_group_keeps_its_multiple_of_the_rate() -> None:
    seen: list[list[float]] = []
    step = classifier(sf.LayerRates(decay=0.5), optimizer=sf.SGD(learning_rate=0.1))
    step.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append(sorted({group["lr"] for group in optimizer.param_groups}))
    )
    find_lr(step, windows(10), start=0.01, end=0.1, updates=2)
    assert seen == [pytest.approx([0.005, 0.01]), pytest.approx([0.05, 0.1])]


def test_one_part_alone_is_raised_and_the_others_stay() -> None:
    step = classifier(sf.LayerRates(decay=0.5), optimizer=sf.AdamW(learning_rate=0.1))
    assert list(parts_of(step.optimizer)) == ["layer 1", "layer 2"]
    moved: list[tuple[bool, bool]] = []
    before = [layer.weight.detach().clone() for layer in (step.model[0], step.model[2])]

    def look(*_: Any) -> None:
        first, last = step.model[0].weight, step.model[2].weight
        moved.append((not torch.equal(first, before[0]), not torch.equal(last, before[1])))

    step.optimizer.register_step_post_hook(look)
    found = find_lr(step, windows(3), start=0.01, end=0.1, updates=3, part="layer 1")
    assert moved == [(True, False)] * 3
    assert [reading.learning_rate for reading in found.curve] == pytest.approx([0.01, 0.1**1.5, 0.1])
    with pytest.raises(
        SettingError, match=r"part: the optimizer has none of the name 'head'\. Known: layer 1"
    ):
        find_lr(step, windows(3), part="head")


def test_it_ends_when_the_loss_diverges_or_is_not_finite() -> None:
    diverged = find_lr(classifier(), windows(60), start=1e-3, end=1e6, updates=60)
    assert diverged.stopped.startswith("the loss diverged at a rate of ") and len(diverged.curve) < 60
    last = diverged.curve[-1]
    assert last.smoothed > 4 * min(reading.smoothed for reading in diverged.curve)
    infinite = find_lr(overflowing(), windows(60), start=1e-3, end=1e30, updates=60)
    assert infinite.stopped.startswith("the loss was not finite at a rate of ")
    assert not math.isfinite(infinite.curve[-1].loss) and math.isfinite(infinite.curve[-1].smoothed)
    assert infinite.as_dict()["curve"][-1][1] is None
    assert infinite.learning_rate is None or infinite.learning_rate < infinite.curve[-1].learning_rate


def overflowing() -> sf.Step:
    """Its loss goes from small to infinite in one update: the smoothed loss has no time to diverge."""

    def loss(outputs: Tensor, data: Any) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, data[1], reduction="none")
        return losses / (losses < 3)

    return sf.Step(classifier().model, sf.SGD(learning_rate=0.5), loss)


def test_data_that_is_not_finite_is_told_from_a_rate_that_is_too_high() -> None:
    poisoned = [(torch.full((8, 4), math.nan), torch.zeros(8, dtype=torch.long))]
    found = find_lr(classifier(), [*poisoned, *windows(5)], updates=5)
    assert found.stopped == "the loss was not finite before anything was learned: look at the data"
    assert found.learning_rate is None and len(found.curve) == 1


def test_windows_in_which_nothing_counts_are_passed_over() -> None:
    ((inputs, labels),) = windows(1)
    empty = (inputs, torch.full_like(labels, -100))
    found = find_lr(classifier(), [empty, *windows(2), empty], updates=5)
    assert len(found.curve) == 2 and found.stopped == "the data ended after 2 of 5 updates"
    assert found.curve[0].loss > 0


def test_where_no_update_is_applied_no_rate_is_said() -> None:
    class Never(sf.Technique):
        card = sf.Card(
            "never", "Refuses all.", sf.SGD.card.family, "a test", seams=("accept",), cost="", use_when=""
        )

        def seams(self, context: Any) -> sf.Seams:
            return sf.Seams(accept=lambda loss: "never")

    found = find_lr(classifier(Never()), windows(20), updates=20)
    assert (
        found.num_skipped == 20 and found.learning_rate is None and "no update was applied" in found.verdict
    )


def test_a_good_rate_learns_and_a_range_that_ends_too_soon_is_said_so() -> None:
    found = find_lr(classifier(), windows(100), start=1e-4)
    assert found.learning_rate is not None
    assert learned(found.learning_rate) < 0.5 * learned(1e-4)
    short = find_lr(classifier(), windows(100), start=1e-5, end=0.1)
    assert short.learning_rate is None and "Give a higher end" in short.verdict
    assert short.as_dict()["recommended"] is None and short.as_dict()["doubts"] == list(short.doubts)


def test_on_an_easy_model_that_any_rate_teaches_none_is_recommended() -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(4) + 2 * (number % 2), number % 2) for number in range(64)]
    found = sf.find_lr(nn.Linear(4, 2), rows, optimizer=sf.AdamW(learning_rate=1e-3), start=1e-4)
    assert found.suggestions["minimum"].learning_rate == pytest.approx(1.0, rel=0.3)
    assert found.learning_rate is None and found.settings == {}
    assert any("lowest at the end of the range" in each for each in found.test.doubts)


def learned(rate: float) -> float:
    step = classifier(optimizer=sf.SGD(learning_rate=rate))
    return [step(window).loss for window in windows(50)][-1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 1.0, "end": 0.1}, r"start, end: must be rising rates above 0, found 1 and 0\.1"),
        ({"start": 0.0}, "found 0 and 10"),
        ({"updates": 1}, "updates: must be at least 2, found 1"),
        ({"smoothing": 1.0}, r"smoothing: must be in \[0, 1\), found 1"),
    ],
)
def test_an_impossible_setting_is_refused_with_its_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        find_lr(classifier(), windows(1), **settings)


def test_plain_values_hold_all_that_was_found() -> None:
    found: RangeTest = find_lr(classifier(), windows(100), start=1e-4)
    told = found.as_dict()
    assert told["learning_rate"] == told["suggestions"][told["recommended"]]["learning_rate"]
    assert set(told["suggestions"]) == {"steepest", "valley", "minimum"}
    assert [tuple(reading) for reading in told["curve"]] == list(found.curve)
