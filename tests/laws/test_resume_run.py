"""Resume of whole runs: {run to N} equals {run to k, stop, resume to N}, bit for bit, whatever the run does.

Data with randomness of its own, evaluation in between, checkpoints on the disk; the second part has a fresh
process's state: another initialisation, other global random numbers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from snugfit.core.job import Plan
from snugfit.core.technique import Technique
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.gradient_cache import GradientCache
from snugfit.techniques.learning.hard_examples import HardExamples
from snugfit.techniques.learning.label_smoothing import LabelSmoothing
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.learning.sgd import SGD
from tests.laws import problems
from tests.laws.models import FEATURES, LONGEST, VOCABULARY, Normed, Reader
from tests.laws.problems import differences
from tests.unit.run.training.runs import finish, make_training, points, resumed, seen, stop_at, told

EXAMPLES, WINDOW = 19, 7  # three windows an epoch, the last of 5
WINDOWS = 6
IGNORED = -100

EVERYTHING = (
    AdamW(learning_rate=0.01),
    Linear(warmup=2),
    ClipNorm(max_norm=0.5),
    EMA(decay=0.8),
    SAM(rho=0.1),
    HardExamples(fraction=0.6),
    LabelSmoothing(epsilon=0.1),
)


class Texts:
    """Sequences of several lengths; every reading of one draws anew, from each of the global generators."""

    def __init__(self, count: int, *, per_token: bool, context: bool, poison: int | None = None) -> None:
        self.count, self.per_token, self.context, self.poison = count, per_token, context, poison

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        fixed = torch.Generator().manual_seed(index)
        length = int(torch.randint(2, LONGEST + 1, (), generator=fixed))
        ids = torch.randint(1, VOCABULARY, (length,), generator=fixed)
        labels = ids.roll(1) if self.per_token else ids.sum() % 3
        ids = torch.where(torch.rand(length) < 0.2, random.randrange(1, VOCABULARY), ids)
        features = torch.randn(FEATURES, generator=fixed) + torch.tensor(np.random.randn(FEATURES)).float()
        if index == self.poison:
            features[0] = float("nan")
        return {"ids": ids, "labels": labels, "features": features, "name": f"text {index}"}

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        ids = nn.utils.rnn.pad_sequence([example["ids"] for example in examples], batch_first=True)
        mask = (ids != 0).long()
        if self.per_token:
            labels = nn.utils.rnn.pad_sequence(
                [example["labels"] for example in examples], batch_first=True, padding_value=IGNORED
            )
            labels = labels.masked_fill(torch.rand(labels.shape) < 0.2, IGNORED)
        else:
            labels = torch.stack([example["labels"] for example in examples])
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        if self.context:
            numbers = {"features": torch.stack([example["features"] for example in examples])}
            batch["context"] = {"names": [example["name"] for example in examples], "numbers": numbers}
        return batch


@dataclass(frozen=True)
class Case:
    """A run of 6 windows, evaluated every second one, and where it is stopped; `workers` before and after the stop."""

    make_model: Callable[[int], nn.Module]
    techniques: tuple[Technique, ...]
    stops: tuple[int, ...]
    texts: dict[str, Any] | None = None
    loss: str = "cross_entropy"
    workers: tuple[int, int] = (0, 0)
    applied: int = WINDOWS

    def training(self, folder: Path, model_seed: int = 1, workers: int = 0) -> Training:
        train: Any = points(EXAMPLES)
        validation: Any = points(5, seed=1)
        collate = None
        if self.texts is not None:
            train = Texts(EXAMPLES, **self.texts)
            validation = Texts(5, **{**self.texts, "poison": None})
            collate = train.collate
        return make_training(
            folder,
            model=self.make_model(model_seed),
            train=train,
            validation=validation,
            techniques=self.techniques,
            metrics={"spread": spread},
            best="max:spread",
            loss=self.loss,
            collate=collate,
            plan=Plan(micro_batch=3, num_workers=workers),
            global_batch=WINDOW,
            evaluate_every=2,
        )


def spread(outputs: Any, data: Any) -> Tensor:
    """A metric of one's own: how far apart a row's logits are."""
    logits = outputs["logits"] if not isinstance(outputs, Tensor) else outputs
    return logits.flatten(1).std(dim=1)


def reader(seed: int) -> nn.Module:
    return problems.reader(()).model(torch.float32, dropout=0.2, seed=seed)


def normed(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Normed(dropout=0.2)
        model.body[0] = nn.Linear(2, 8)
        return model


def text_reader(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Reader(0.2, per_token=False)


def bert(seed: int) -> nn.Module:
    return problems.bert(()).model(torch.float32, dropout=0.2, seed=seed)


def gpt2(seed: int) -> nn.Module:
    return problems.gpt2(()).model(torch.float32, dropout=0.2, seed=seed)


NESTED = {"per_token": True, "context": True}
CASES = {
    "everything": Case(reader, EVERYTHING, stops=(1, 2, 3, 4, 5), texts=NESTED),
    "workers": Case(reader, EVERYTHING, (4,), NESTED, workers=(2, 2)),
    "workers after none": Case(reader, EVERYTHING, (3,), NESTED, workers=(0, 2)),
    "a skipped window": Case(reader, EVERYTHING, (1, 3, 5), {**NESTED, "poison": 4}, applied=WINDOWS - 2),
    "batch norm": Case(normed, (SGD(learning_rate=0.1, momentum=0.9), EMA(decay=0.8), SAM(rho=0.1)), (1, 4)),
    "gradient cache": Case(
        text_reader,
        (AdamW(learning_rate=0.01), GradientCache(), Cosine(warmup=1)),
        (2, 5),
        {"per_token": False, "context": True},
    ),
    "stock encoder": Case(bert, EVERYTHING, (1, 5), {"per_token": False, "context": False}),
    "stock language model": Case(
        gpt2, EVERYTHING[:-1], (2, 4), {"per_token": True, "context": False}, loss="causal_lm"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_stopped_and_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = case.training(tmp_path / "whole", workers=case.workers[0])
    result = finish(whole)
    assert (result.status, result.updates) == ("finished", case.applied)
    assert len(seen(whole)) == WINDOWS
    assert len(set(seen(whole))) == WINDOWS

    for stop in case.stops:
        folder = tmp_path / f"stopped after {stop}"
        first = case.training(folder, workers=case.workers[0])
        stop_at(first, stop)
        torch.manual_seed(stop), np.random.seed(stop), random.seed(stop)
        second = resumed(case.training(folder, model_seed=2, workers=case.workers[1]))
        again = finish(second)

        assert seen(first) + seen(second) == seen(whole)
        assert told(second) == told(whole)
        assert not differences(saved(whole), saved(second))
        assert not differences(best(whole), best(second))
        assert (again.updates, again.best, again.last) == (result.updates, result.best, result.last)


def test_stopping_at_every_boundary_changes_nothing(tmp_path: Path) -> None:
    case = CASES["everything"]
    whole = case.training(tmp_path / "whole")
    finish(whole)
    folder = tmp_path / "stopped"
    training = case.training(folder)
    for stop in range(1, WINDOWS):
        stop_at(training, stop)
        training = resumed(case.training(folder, model_seed=stop + 1))
    finish(training)
    assert told(training) == told(whole)
    assert not differences(saved(whole), saved(training))


def test_a_run_that_goes_on_from_an_older_checkpoint_repeats_what_was_lost(tmp_path: Path) -> None:
    case = CASES["everything"]
    whole = case.training(tmp_path / "whole")
    finish(whole)
    lost = case.training(tmp_path / "lost")
    stop_at(lost, 5)
    for path in (lost.folder.checkpoints / "update-00000005").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    # its newest checkpoint is torn; the one before is of window 4
    second = resumed(case.training(tmp_path / "lost", model_seed=2))
    assert second.step.progress.windows == 4
    finish(second)
    assert told(second) == told(whole)
    assert not differences(saved(whole), saved(second))
    assert not differences(best(whole), best(second))


def saved(training: Training) -> dict[str, Any]:
    """The last checkpoint, read from the disk: weights, buffers, optimizer, averages, counters, the watch."""
    loaded = checkpoint_files.load_newest(training.folder.checkpoints)
    assert not loaded.rejected
    return loaded.parts


def best(training: Training) -> dict[str, Any]:
    folder = training.folder.best
    meta = json.loads((folder / "snugfit.json").read_text())
    del meta["files"]  # safetensors puts the notes of tied weights in any order
    weights = {path.name: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
    assert weights
    return {"meta": meta, "weights": weights}
