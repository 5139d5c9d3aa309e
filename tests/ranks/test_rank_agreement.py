"""What only some ranks see, such as a row that is not finite, is decided by all: none waits for a pass that another does not make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.errors import RunFolderError, SaidElsewhere, SettingError
from snugfit.kit.sharded_tensors import own_part
from snugfit.run.training.culprit import MOST_WINDOWS, find_culprit, keep_window
from snugfit.strategies.base import SeveralRanks
from tests.laws.problems import find_examples, gpt2, make_step, relative_error, weights
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import Never, events, make_training, points, small_model

EXAMPLES = 8
OF_RANK_1 = 2
"""A row of the first window that the second rank has, of windows of four in the order of the data."""

BOTH = pytest.mark.parametrize("strategy", ["ddp", "fsdp"])


@pytest.mark.slow
@BOTH
def test_a_row_that_is_not_finite_on_one_rank_is_named_by_all_and_its_window_is_skipped(
    two: Ranks, tmp_path: Path, strategy: str
) -> None:
    first, second = two.run(poisoned, tmp_path, strategy)
    assert first["ended"] == second["ended"] == ("finished", 1, 2)
    (reason,) = first["skipped"]
    assert reason.endswith(
        "not finite, first in the batch itself, tensor 0, in row 2 (training) (rank 1); "
        "the batch is in culprits/window-00000001-rank-*.safetensors"
    )
    ids_by_file = {path.name: ids_in(path) for path in (tmp_path / "culprits").iterdir()}
    assert ids_by_file == {
        "window-00000001-rank-0.safetensors": "0,1",
        "window-00000001-rank-1.safetensors": "2,3",
    }


def poisoned(folder: Path, strategy: str) -> dict[str, Any]:
    training = make_training(
        folder,
        train=points(EXAMPLES, poison=[OF_RANK_1]),
        strategy=STRATEGIES[strategy](),
        shuffle=False,
        epochs=1.0,
    )
    result = training.run(Never())  # type: ignore[arg-type]
    skipped = events(training, "skipped") if dist.get_rank() == 0 else []
    ended = (result.status, result.updates, training.step.progress.windows)
    return {"ended": ended, "skipped": [each["reason"] for each in skipped]}


def ids_in(path: Path) -> str:
    with safe_open(path, "pt") as file:
        return str(file.metadata()["example_ids"])


@BOTH
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("nowhere", "the loss, or a later pass of a technique"),
        ("parameter", "parameter 3.weight"),
        ("output", "output of 1 (Odd), from finite inputs (rank 1)"),
        ("gradient", "gradient of 0.weight"),
    ],
)
def test_what_is_not_finite_on_the_second_rank_alone_is_found_by_both(
    two: Ranks, strategy: str, where: str, expected: str
) -> None:
    first, second = two.run(culprit, strategy, where)
    assert first == second
    # a weight and a gradient that is added up are of all ranks under ddp, and of one under fsdp
    assert first in ({expected, f"{expected} (rank 1)"} if where in ("parameter", "gradient") else {expected})


def culprit(strategy: str, where: str) -> str:
    model = small_model()
    model[1] = Odd(where)
    step = make_training(Path("."), model=model, strategy=STRATEGIES[strategy]()).step
    rank = dist.get_rank()
    if where == "parameter" and rank == 1:
        with torch.no_grad():
            own_part(step.model.get_submodule("3").weight)[-1] = float("nan")  # type: ignore[index]
    inputs, labels = zip(*points(4), strict=True)
    step.progress.windows += 1  # as after the step that refused it
    rows = range(2 * rank, 2 * rank + 2)
    return find_culprit(step, Batch.of((torch.stack(inputs), torch.stack(labels))).select(rows))


class Odd(nn.Tanh):
    """A layer of which the output or the gradient is infinite on the second rank."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        if dist.get_rank() == 1 and self.where == "gradient":
            outputs.register_hook(lambda gradient: gradient * float("inf"))
        return outputs * float("inf") if dist.get_rank() == 1 and self.where == "output" else outputs


def test_the_first_rank_says_how_many_windows_are_kept(two: Ranks, tmp_path: Path) -> None:
    names = two.run(keep, tmp_path, MOST_WINDOWS + 1)
    assert names[0] == names[1]
    assert names[0][:-1] == [
        f"culprits/window-{number:08d}-rank-*.safetensors" for number in range(1, MOST_WINDOWS + 1)
    ]
    assert names[0][-1] is None
    assert len(list((tmp_path / "culprits").iterdir())) == 2 * MOST_WINDOWS


def keep(folder: Path, windows: int) -> list[str | None]:
    window = Batch.of((torch.zeros(1, 1), torch.zeros(1)))
    return [
        keep_window(folder / "culprits", number, window, SeveralRanks()) for number in range(1, windows + 1)
    ]


def test_a_batch_that_one_rank_cannot_write_is_an_error_of_both(two: Ranks, tmp_path: Path) -> None:
    (tmp_path / "culprits" / "window-00000001-rank-1.safetensors").mkdir(parents=True)
    for message in two.run(not_kept, tmp_path):
        assert "window-00000001-rank-1.safetensors: the batch cannot be written" in message


def not_kept(folder: Path) -> str:
    with pytest.raises(RunFolderError) as raised:
        keep(folder, 1)
    return str(raised.value)


@BOTH
def test_the_first_rank_decides_when_to_stop(two: Ranks, tmp_path: Path, strategy: str) -> None:
    for asked, expected in ((0, ("finished", "early stopping: enough", 1)), (1, ("finished", None, 3))):
        found = two.run(stopping, tmp_path / f"{strategy}{asked}", strategy, asked)
        assert found == [expected] * 2


def stopping(folder: Path, strategy: str, asked: int) -> tuple[str, str | None, int]:
    """A run whose `stop_when` says so on one rank alone."""
    training = run_of(folder, strategy, lambda: "enough" if dist.get_rank() == asked else None)
    result = training.run(Never())  # type: ignore[arg-type]
    return result.status, result.stop_reason, training.step.progress.windows


def test_a_stop_when_that_fails_on_the_first_rank_ends_both(two: Ranks, tmp_path: Path) -> None:
    first, second = two.run(failing, tmp_path)
    assert first[0] is SettingError
    assert first[1].startswith("early_stopping.stop_when: failed: ZeroDivisionError: division by zero")
    assert second == (SaidElsewhere, first[1])


def failing(folder: Path) -> tuple[type[BaseException], str]:
    training = run_of(folder, "ddp", lambda: str(1 / dist.get_rank()))
    with pytest.raises((SettingError, SaidElsewhere)) as raised:
        training.run(Never())  # type: ignore[arg-type]
    return raised.type, str(raised.value)


def run_of(folder: Path, strategy: str, stop_when: Callable[[], str | None]) -> Any:
    data = points(12)
    return make_training(
        folder,
        train=data,
        validation=data[:4],
        epochs=1.0,
        evaluate_every=1,
        stop_when=lambda history: stop_when(),
        strategy=STRATEGIES[strategy](),
    )


@pytest.mark.slow
def test_ranks_of_which_one_has_nothing_to_pack_make_the_passes_of_the_check_together(two: Ranks) -> None:
    """Under fsdp each pass gathers the blocks: a rank that compares packed rows alone would wait for the others."""
    alone = packed_update("alone")
    for found in two.run(packed_update, "fsdp"):
        assert relative_error(found, alone) <= 1e-10


def packed_update(strategy: str) -> dict[str, Tensor]:
    """The weights after a window whose first two rows have no padding, and whose others fit into one."""
    techniques = find_examples("packing")
    problem = gpt2(techniques)
    step = make_step(problem, techniques, micro_batch=2, strategy=STRATEGIES[strategy]())
    (window,) = problem.windows(rows=(4,))
    mask = torch.ones_like(window["attention_mask"])
    mask[2:, mask.shape[1] // 2 :] = 0
    labels = window["input_ids"].masked_fill(mask == 0, -100)
    step(part_of(step, {**window, "attention_mask": mask, "labels": labels}))
    return weights(step)
