"""Windows that differ in size: whatever their sizes, a run is the plain loop over them, in any micro-batches and across any stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.core.windows import Cuts
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ema import EMA
from tests.laws import problems
from tests.laws.problems import differences, relative_error
from tests.laws.test_resume_run import saved
from tests.laws.windows import LONGEST, SIZES, by_hand, texts, training, words
from tests.unit.run.training.runs import events, finish, resumed, seen, stop_at, told


@pytest.mark.parametrize("sizes", SIZES)
def test_a_run_is_the_plain_loop_over_its_windows_in_any_micro_batches(sizes: str, tmp_path: Path) -> None:
    ran = {size: training(tmp_path / str(size), sizes, micro_batch=size) for size in (None, 1, 3)}
    windows = [ran[None].loader.order.window(number) for number in range(ran[None].total_windows)]
    assert len({len(window) for window in windows}) > 1
    expected = by_hand([tuple(index for _, index in window) for window in windows])
    for each in ran.values():
        result = finish(each)
        assert result.updates == len(windows)
        assert [list(ids) for ids in seen(each)] == [[index for _, index in window] for window in windows]
        assert relative_error(problems.weights(each.step), expected) <= 1e-10


@pytest.mark.parametrize(
    "sizes", [*(pytest.param(each, marks=pytest.mark.slow) for each in [*SIZES][:-1]), [*SIZES][-1]]
)
def test_stopping_after_every_update_changes_nothing(sizes: str, tmp_path: Path) -> None:
    techniques = (AdamW(learning_rate=0.01), Cosine(warmup=2), EMA(decay=0.8))

    def begun(name: str, seed: int = 1) -> Training:
        model = words(seed, dropout=0.2)
        return training(tmp_path / name, sizes, micro_batch=2, model=model, techniques=techniques)

    whole = begun("whole")
    finish(whole)
    stopped, windows = begun("stopped"), []
    for stop in range(1, whole.total_windows):
        stop_at(stopped, stop)
        windows += seen(stopped)
        stopped = resumed(begun("stopped", seed=stop + 1))
    finish(stopped)
    assert windows + seen(stopped) == seen(whole)
    assert told(stopped) == told(whole)
    assert not differences(saved(whole), saved(stopped))


@pytest.mark.parametrize("sizes", SIZES)
def test_every_epoch_has_each_example_once_and_ends_with_an_evaluation(sizes: str, tmp_path: Path) -> None:
    run = training(tmp_path, sizes)
    finish(run)
    cuts: Cuts = run.loader.order.cuts
    for epoch in range(2):
        windows = seen(run)[cuts.first(epoch) : cuts.first(epoch + 1)]
        assert sorted(index for window in windows for index in window) == list(range(len(texts())))
    evaluated = [event["window"] for event in events(run, "evaluation")]
    assert evaluated == [cuts.first(1), cuts.first(2), run.total_windows]


@pytest.mark.parametrize(
    ("sizes", "limits"), [("tokens", [30] * 50), ("tokens that grow", [10, 10, 20, 30] + [40] * 50)]
)
def test_a_window_has_as_many_of_the_next_examples_as_its_tokens_allow(
    sizes: str, limits: list[int], tmp_path: Path
) -> None:
    run, lengths = training(tmp_path, sizes), [len(row["input_ids"]) for row in texts()]
    assert max(lengths) == LONGEST
    order = run.loader.order
    windows = [order.window(number) for number in range(run.total_windows)]
    for limit, window, following in zip(limits, windows, [*windows[1:], []], strict=False):
        tokens = sum(lengths[index] for _, index in window)
        assert tokens <= limit
        if following and following[0][0] == window[0][0]:  # the same epoch goes on
            assert tokens + lengths[following[0][1]] > limit
