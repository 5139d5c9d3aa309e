"""Data, code and models that are made in Python are compared over ranks before the first update, by what some rows hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from snugfit.errors import SaidElsewhere, SettingError
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import make_training, points, small_model


def other(what: str) -> dict[str, Any]:
    """Arguments of a run of which the second rank has another value."""
    rows = points(12)
    if dist.get_rank() == 0:
        return {"train": rows, "validation": rows[:4], "model": small_model()}
    by_number = {"labels": [(inputs, (label + 1) % 3) for inputs, label in rows], "order": rows[::-1]}
    return {
        "train": by_number.get(what, rows),
        "validation": rows[1:5] if what == "validation" else rows[:4],
        "model": nn.Linear(2, 4) if what == "model" else small_model(),
        **({"loss": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)} if what == "loss" else {}),
    }


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("labels", "in data train row 0, data train row 1, data train row 2 and 9 more."),
        ("order", "in data train row 0,"),
        ("validation", "in data validation row 0,"),
        ("model", "in model class"),
        ("loss", "in loss"),
    ],
)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_differs_on_another_rank_is_refused_by_name_on_all(
    two: Ranks, tmp_path: Path, what: str, named: str, strategy: str
) -> None:
    first, second = two.run(refusal, tmp_path, what, strategy)
    assert (first[0], second[0]) == (SettingError, SaidElsewhere)
    assert first[1] == second[1]
    assert "(rank 1) differs from rank 0" in first[1]
    assert named in first[1]
    assert first[1].endswith("A set of texts has another order in each process: sort it.")


def test_a_label_that_differs_in_one_row_of_a_thousand_is_refused(two: Ranks, tmp_path: Path) -> None:
    for kind, message in two.run(one_other_label, tmp_path):
        assert issubclass(kind, (SettingError, SaidElsewhere))
        assert "(rank 1) differs from rank 0 in data train row 501." in message


def one_other_label(folder: Path) -> tuple[type[BaseException], str]:
    rows = points(1000)
    inputs, label = rows[501]
    rows[501] = (inputs, (label + dist.get_rank()) % 3)
    with pytest.raises((SettingError, SaidElsewhere)) as raised:
        make_training(folder, train=rows, strategy=STRATEGIES["ddp"]())
    return raised.type, str(raised.value)


def refusal(folder: Path, what: str, strategy: str) -> tuple[type[BaseException], str]:
    with pytest.raises((SettingError, SaidElsewhere)) as raised:
        make_training(folder, strategy=STRATEGIES[strategy](), **other(what))
    return raised.type, str(raised.value)


def test_ranks_that_have_the_same_train_whatever_a_row_draws(two: Ranks, tmp_path: Path) -> None:
    assert two.run(accepted, tmp_path) == [12, 12]


class Noisy:
    """Rows that are others each time and on each rank, which nobody can compare."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        inputs, label = points(12)[index]
        return inputs + torch.randn(2, generator=torch.Generator().manual_seed(SEEDS.pop())), label


SEEDS = list(range(1000))


def accepted(folder: Path) -> int:
    del SEEDS[: 100 * dist.get_rank()]
    training = make_training(folder, train=Noisy(), strategy=STRATEGIES["ddp"]())
    return training.loader.order.examples
