"""Evaluation over ranks is that of one: each row counts once, however they are shared out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import IGNORE_INDEX, logits_of
from snugfit.step.metrics.all_rows_metrics import over_all_rows
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.gradient_cache import GradientCache
from tests.laws import problems
from tests.laws.models import contrastive
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import Never, make_training, points

TOLERANCE = 1e-10  # float64; torchmetrics counts
EXACT_IN_FLOAT32 = 1e-6
HELD_OUT = 11


def confidence(outputs: Any, data: Any) -> Tensor:
    """A metric of one's own: a value a row."""
    return logits_of(outputs)[:, 0].amax(dim=1)  # the first token's: others may be padding


@over_all_rows
def middle(logits: Tensor, labels: Tensor) -> Tensor:
    """A metric of one's own of all rows, which is no mean."""
    assert len(logits) == HELD_OUT
    return logits[labels != IGNORE_INDEX].median()


def rows_against_rows(outputs: Any, data: Any) -> LossTerms:
    return LossTerms(*contrastive(outputs, data))


rows_against_rows.couples_rows = True  # type: ignore[attr-defined]

NUMBERS = ("mse", "mae", "rmse", "r2", "pearson", "spearman")
BUILT_IN = ("accuracy", "macro_f1", "auroc", *NUMBERS)
METRICS: dict[str, Any] = {
    "auroc": "auroc",
    "accuracy": "accuracy",
    "macro_f1": "macro_f1",
    "confidence": confidence,
    "middle": middle,
}
KINDS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "tokens": ((), {**METRICS, "perplexity": "perplexity"}, None),
    "rows against rows": ((GradientCache(),), {}, rows_against_rows),
    "chunks": (problems.find_examples("chunked_loss"), {"perplexity": "perplexity"}, None),
    "numbers": ((), {name: name for name in NUMBERS}, "mse"),
}


def evaluated(
    folder: Path, kind: str, strategy: str, batch: int, micro_batch: int | None
) -> dict[str, float]:
    """The score of a model after one update, of 11 rows in batches of so many."""
    techniques, metrics, loss = KINDS[kind]
    problem = problems.main(techniques)
    if kind == "numbers":
        model: Any = torch.nn.Sequential(
            torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
        ).double()
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        train: Any = [(inputs.double(), labels[None].double()) for inputs, labels in points(19)]
        collate = None
    else:
        (window,) = map(Batch.of, problem.windows(rows=[19]))
        model, train, loss = problem.model(), list(range(19)), loss or problem.loss
        collate = lambda rows: window.select(rows).data  # noqa: E731
    training = make_training(
        folder,
        model=model,
        train=train,
        validation=train[:HELD_OUT],
        techniques=(AdamW(learning_rate=0.01), EMA(decay=0.5), *techniques),
        metrics=metrics,
        loss=loss,
        collate=collate,
        plan=Plan(micro_batch=micro_batch),
        global_batch=7,
        evaluate_batch=batch,
        updates=1,
        epochs=None,
        strategy=STRATEGIES[strategy](),
    )
    training.run(Never())  # type: ignore[arg-type]
    return training.last_metrics


def assert_exact(
    ranks: Ranks,
    folder: Path,
    kind: str,
    strategy: str,
    batch: int,
    micro_batch: int | None,
) -> None:
    expected = evaluated(folder / "alone", kind, "alone", HELD_OUT, None)
    assert expected.keys() == {"loss", *KINDS[kind][1]}
    first, *others = ranks.run(evaluated, folder / "ranks", kind, strategy, batch, micro_batch)
    assert all(other == first for other in others)
    for name, value in first.items():
        near = EXACT_IN_FLOAT32 if name in BUILT_IN else TOLERANCE
        assert value == pytest.approx(expected[name], rel=near), name


# of the last batch: one row for one of the ranks, uneven parts, even ones
@pytest.mark.slow
@pytest.mark.parametrize(("batch", "micro_batch"), [(10, 2), (7, 2), (HELD_OUT, None), (3, 1), (1, None)])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_scores_of_two_ranks_are_those_of_one(
    two: Ranks, tmp_path: Path, strategy: str, batch: int, micro_batch: int | None
) -> None:
    assert_exact(two, tmp_path, "tokens", strategy, batch, micro_batch)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_score_is_exact_on_two_ranks(
    two: Ranks, tmp_path: Path, kind: str, strategy: str
) -> None:
    # the same batches on both sides: a loss that compares rows compares those of a batch
    assert_exact(two, tmp_path, kind, strategy, HELD_OUT, 2)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_rank_without_rows_of_the_last_batch_makes_as_many_passes_where_rows_are_compared(
    two: Ranks, tmp_path: Path, strategy: str
) -> None:
    """Under fsdp each pass gathers the blocks, which all ranks have to do as often."""
    expected = embedded(tmp_path / "alone", "alone")
    for found in two.run(embedded, tmp_path / "ranks", strategy):
        assert found == pytest.approx(expected, rel=TOLERANCE)


def embedded(folder: Path, strategy: str) -> float:
    """The loss of 5 rows in batches of 4, by similarity to each other."""
    torch.manual_seed(0)
    data = [(inputs.double(), labels) for inputs, labels in points(5)]
    training = make_training(
        folder,
        model=Tower().double(),
        train=data,
        validation=data,
        techniques=(AdamW(learning_rate=0.01), GradientCache()),
        loss=similarity,
        epochs=None,
        updates=1,
        strategy=STRATEGIES[strategy](),
    )
    training.run(Never())  # type: ignore[arg-type]
    return training.last_metrics["loss"]


class Tower(torch.nn.Module):
    """Numbered blocks, each of which fsdp gathers by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs).tanh()
        return inputs


def similarity(outputs: Any, data: Any) -> LossTerms:
    scores = outputs @ outputs.T
    return LossTerms(torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="none"))


similarity.couples_rows = True  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("batch", [9, 5, 1])
def test_the_scores_of_four_ranks_are_those_of_one(
    four: Ranks, tmp_path: Path, strategy: str, batch: int
) -> None:
    assert_exact(four, tmp_path, "tokens", strategy, batch, 1)
