"""Each micro-batch is tried with all that will be alive; the largest and the fastest are said, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.errors import OutOfMemory, SettingError
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.tools.find_batch import measure as tool
from snugfit.tools.find_batch.measure import find_batch, standing_bytes
from snugfit.tools.find_batch.result import FITS, OUT_OF_MEMORY, PREDICTED, FoundBatch
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved


def window(rows: int = 16, width: int = 64) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(rows, width, generator=source), torch.arange(rows) % 3


def net(hidden: int = 256) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 3))


class Small(nn.Linear):
    """A layer on a device with room for `room` rows."""

    room = 3

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(rows)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Micro-batches and the seconds that an update with them takes."""
    seconds: dict[int, float] = {}
    now = [0.0]
    update = tool._Trying._update

    def slow(self: Any, batch: Batch, size: int) -> Any:
        now[0] += seconds.get(size, 1.0)
        return update(self, batch, size)

    monkeypatch.setattr(tool._Trying, "_update", slow)
    monkeypatch.setattr(tool.time, "perf_counter", lambda: now[0])
    return seconds


def test_the_largest_that_fits_and_the_fastest_are_told_apart(clock: dict[int, float]) -> None:
    clock.update({1: 8.0, 2: 4.0, 4: 1.6, 8: 2.0, 16: 3.2})
    found = find_batch(sf.Step(net(), sf.AdamW()), window(), updates=2)
    assert [row.micro_batch for row in found.rows] == [1, 2, 4, 8, 16]
    assert [row.examples_per_second for row in found.rows] == pytest.approx([2.0, 4.0, 10.0, 8.0, 5.0])
    assert (found.largest, found.fastest) == (16, 4)
    assert (
        "micro-batches of 16 are the largest that fit, of a window of 16, and 4 the fastest: 10 examples/s, 100.0% more"
        in found.message
    )
    assert all(len(row.seconds) == 2 for row in found.rows)


def test_a_size_that_the_device_refuses_is_said_and_the_others_go_on() -> None:
    found = find_batch(sf.Step(Small(64, 3), sf.AdamW()), window(12))
    assert {row.micro_batch: row.verdict for row in found.rows} == {
        1: FITS,
        2: FITS,
        3: FITS,
        **dict.fromkeys((4, 6, 8, 12), OUT_OF_MEMORY),
    }
    assert found.largest == 3 and all(row.examples_per_second is None for row in found.rows[3:])


def test_an_evaluation_that_does_not_fit_rules_a_size_out() -> None:
    class Scoring(nn.Linear):
        """Needs a lot for scoring."""

        def forward(self, rows: Tensor) -> Tensor:
            found = super().forward(rows)
            return (
                found
                if self.training
                else found + torch.zeros(len(rows), 1000, 1000).mean((1, 2)).unsqueeze(1)
            )

    step = sf.Step(Scoring(64, 3), sf.SGD(learning_rate=0.1))
    alone = find_batch(step, window(4), memory_bytes=10_000_000)
    assert alone.largest == 4
    scored = find_batch(step, window(4), memory_bytes=10_000_000, evaluation=Batch.of(window(4)))
    assert [row.verdict for row in scored.rows] == [FITS, FITS, PREDICTED]
    assert scored.rows[1].peak_bytes == pytest.approx(8_000_000, rel=0.01)


def test_an_update_that_is_refused_rules_a_size_out_and_is_undone() -> None:
    step = sf.Step(net(), sf.AdamW())
    before = saved(step)

    def refuse(*_: Any) -> None:
        if (step.micro_batch or 0) >= 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    step.optimizer.register_step_pre_hook(refuse)
    found = find_batch(step, window(), updates=1)
    assert [row.verdict for row in found.rows] == [FITS, FITS, FITS, OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert found.largest == 4 and not found.rows[-1].seconds
    assert not differences(before, saved(step))


def test_where_nothing_fits_each_size_is_told_with_its_bytes() -> None:
    with pytest.raises(
        OutOfMemory,
        match=r"no micro-batch of a window of 4 examples fits: 1: .* KiB, does not fit.*; 4: .*predicted.*\(of 270\.00 KiB\)\. Give",
    ):
        find_batch(sf.Step(net(), sf.AdamW()), window(4), memory_bytes=270 * 1024)


def test_an_evaluation_of_which_no_row_is_taken_is_refused() -> None:
    step = sf.Step(Never(64, 3), sf.SGD(learning_rate=0.1))
    with pytest.raises(OutOfMemory, match="memory ran out in scoring a single example"):
        find_batch(step, window(4), evaluation=Batch.of(window(4)))


class Never(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        if not self.training:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(rows)


@pytest.mark.slow
def test_on_a_cpu_what_is_predicted_not_to_fit_is_not_run() -> None:
    step = sf.Step(net(), sf.AdamW())
    free = find_batch(step, window(64), updates=1)
    peaks = {row.micro_batch: row.peak_bytes or 0 for row in free.rows}
    rows_seen: list[int] = []
    step.model.register_forward_hook(lambda _, args, __: rows_seen.append(len(args[0])))
    tight = find_batch(step, window(64), memory_bytes=peaks[16] + 1000, updates=1)
    assert [row.verdict for row in tight.rows] == [FITS] * 5 + [PREDICTED] * 2
    assert tight.largest == 16 and max(rows_seen) <= 16
    for row in tight.rows[5:]:
        assert row.peak_bytes == pytest.approx(peaks[row.micro_batch], rel=0.1), (
            "predicted, and measured before"
        )
    assert tight.budget_bytes == peaks[16] + 1000


def test_memory_is_that_of_weights_states_and_an_update() -> None:
    step = sf.Step(net(), sf.AdamW(), techniques=[sf.EMA()])
    found = find_batch(step, window())
    weights = sum(parameter.nbytes for parameter in step.parameters)
    steps = 4 * len(step.parameters)  # AdamW counts its updates for each parameter
    assert found.standing_bytes == 4 * weights + steps  # with two moments and the average
    with AllocatedBytes() as allocated:
        step.micro_batch = 16
        step(window())
    states = 2 * weights + steps
    assert found.rows[-1].peak_bytes == pytest.approx(
        found.standing_bytes + allocated.peak - states, rel=0.05
    )


def test_a_budget_below_what_stands_there_anyway_is_refused_with_both_numbers() -> None:
    with pytest.raises(OutOfMemory, match=r"states take 2\d\d\.\d+ KiB, and the budget is 100\.00 KiB"):
        find_batch(sf.Step(net(), sf.AdamW()), window(), memory_bytes=100 * 1024)


@pytest.mark.slow
@pytest.mark.parametrize(
    "techniques",
    [
        (),
        problems.together(),
        (sf.AdamW(learning_rate=0.1), sf.OptimizerInBackward()),
        (sf.ScheduleFree(), sf.SAM()),
        (sf.SGD(learning_rate=0.1), sf.FP16(), sf.EMA(), sf.GradualUnfreeze(every=2)),
    ],
    ids=problems.name_of,
)
def test_looking_for_it_leaves_no_trace(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    looked, never = (make_step(problem, techniques, micro_batch=4, dropout=0.3) for _ in range(2))
    first, second, _ = problem.windows()
    for batch in (first, second):
        before, randomness = saved(looked), torch.get_rng_state()
        found = find_batch(looked, batch, evaluation=Batch.of(batch), updates=1)
        assert found.largest == 7 and standing_bytes(looked) > 0
        assert not differences(before, saved(looked))
        assert torch.equal(randomness, torch.get_rng_state()) and looked.micro_batch == 4
        looked(batch), never(batch)
    assert not differences(saved(never), saved(looked))


def test_a_size_that_is_part_of_what_is_learned_is_refused() -> None:
    step = sf.Step(net(), sf.SGD(learning_rate=0.1), techniques=[Coupled()])
    with pytest.raises(SettingError, match="so that its size is part of what is learned"):
        find_batch(step, window())
    with pytest.raises(SettingError, match="updates: must be at least 1, found 0"):
        find_batch(sf.Step(net(), sf.SGD(learning_rate=0.1)), window(), updates=0)


class Coupled(Technique):
    card = replace(sf.ClipNorm.card, name="coupled", couples_examples=True)

    def seams(self, context: Any) -> sf.Seams:
        return sf.Seams()


def test_plain_values_hold_the_table() -> None:
    found: FoundBatch = find_batch(sf.Step(net(), sf.AdamW()), window(), longest=False)
    told = found.as_dict()
    assert told["micro_batch_largest"] == 16 and told["micro_batch_fastest"] in {1, 2, 4, 8, 16}
    assert [row["micro_batch"] for row in told["rows"]] == [1, 2, 4, 8, 16] and told["rows"][0]["fits"]
    assert "it was tried on the first ones" in told["message"]
