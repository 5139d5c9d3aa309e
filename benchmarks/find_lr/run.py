"""Is the curve of `snugfit find lr` that of torch-lr-finder and of Lightning, and are its rates good ones?

    pip install --target peers --no-deps torch-lr-finder
    PYTHONPATH=peers:. python benchmarks/find_lr/run.py     writes results/DATE.json and README.md

1. The same model, optimizer and batches go through the three range tests. Each peer's readings are compared with ours at its own
   rates; Lightning keeps the smoothed loss alone, from which the loss of each update is worked out by its own formula.
2. On four small tasks each suggested rate is trained with, and so are rates on a grid, three seeds each: how far is the
   validation loss of a suggestion from the best of the grid?

Data: the 1,797 handwritten digits of scikit-learn.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import write_result
from snugfit.step.step import Step
from snugfit.tools.find_lr import measure as ours

HERE = Path(__file__).parent
START, END, UPDATES, ROWS = 1e-6, 10.0, 100, 64
SMOOTHINGS = (0.8, 0.9, 0.95, 0.98)
SEEDS = (0, 1, 2)
GRID = [10 ** (power / 2) for power in range(-10, 3)]
EPOCHS = 4


def digits() -> tuple[TensorDataset, TensorDataset]:
    from sklearn.datasets import load_digits

    data = load_digits()
    inputs, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, test = order[:1440], order[1440:]
    return TensorDataset(inputs[train], labels[train]), TensorDataset(inputs[test], labels[test])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


Optimizer = Callable[[nn.Module, float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda model, rate: torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
    "adamw": lambda model, rate: torch.optim.AdamW(model.parameters(), lr=rate),
}
TASKS = {
    f"{model.__name__} {optimizer}": (model, optimizer) for model in (mlp, conv) for optimizer in OPTIMIZERS
}


def made(model: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return model()


def batches(data: TensorDataset, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return as many as a test has updates, over several epochs."""
    pairs: list[tuple[Tensor, Tensor]] = []
    source = torch.Generator().manual_seed(seed)
    while len(pairs) < UPDATES:
        order = torch.randperm(len(data), generator=source)
        pairs += [
            (data.tensors[0][rows], data.tensors[1][rows]) for rows in order.split(ROWS) if len(rows) == ROWS
        ]
    return pairs[:UPDATES]


def as_loader(given: list[tuple[Tensor, Tensor]]) -> DataLoader[Any]:
    inputs, labels = (torch.cat(part) for part in zip(*given, strict=True))
    return DataLoader(TensorDataset(inputs, labels), batch_size=ROWS)


def by_us(
    model: nn.Module,
    optimizer: str,
    given: list[tuple[Tensor, Tensor]],
    rates: list[float] | None,
    smoothing: float,
) -> ours.RangeTest:
    step = Step(model, OPTIMIZERS[optimizer](model, 1e-3))
    span = {"start": START, "end": END, "updates": UPDATES, "smoothing": smoothing}
    if rates is None:
        return ours.find_lr(step, given, **span)  # type: ignore[arg-type]
    with mock.patch.object(ours, "_rates", return_value=rates), mock.patch.object(ours, "DIVERGED", math.inf):
        return ours.find_lr(step, given, **span)  # type: ignore[arg-type]


def by_torch_lr_finder(
    model: nn.Module, optimizer: str, given: list[tuple[Tensor, Tensor]]
) -> tuple[list[float], list[float], float]:
    """Rates, losses without smoothing, and the rate that its plot suggests from smoothed ones."""
    from torch_lr_finder import LRFinder

    def run(smooth: float) -> dict[str, list[float]]:
        tried = copy.deepcopy(model)
        finder = LRFinder(tried, OPTIMIZERS[optimizer](tried, 1e-3), nn.CrossEntropyLoss())
        diverges = math.inf if smooth == 0 else 5
        finder.range_test(
            as_loader(given),
            start_lr=START,
            end_lr=END,
            num_iter=UPDATES,
            smooth_f=smooth,
            diverge_th=diverges,
        )
        return finder.history

    raw, smoothed = run(0.0), run(0.05)
    rates, losses = smoothed["lr"][10:-5], torch.tensor(smoothed["loss"][10:-5])
    steepest = int(torch.gradient(losses)[0].argmin())  # as `plot` does
    return raw["lr"], raw["loss"], rates[steepest]


def by_lightning(
    model: nn.Module, optimizer: str, given: list[tuple[Tensor, Tensor]]
) -> tuple[list[float], list[float], float | None]:
    """Rates, smoothed losses, and the rate that it suggests."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.learning_rate = copy.deepcopy(model), 1e-3

        def training_step(self, batch: Any, number: int) -> Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return OPTIMIZERS[optimizer](self.model, self.learning_rate)

    def run(threshold: float | None) -> Any:
        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, max_epochs=10,
        )  # fmt: skip
        return lightning.pytorch.tuner.Tuner(trainer).lr_find(
            Module(), as_loader(given), min_lr=START, max_lr=END, num_training=UPDATES,
            early_stop_threshold=threshold, update_attr=False,
        )  # fmt: skip

    whole, usual = run(None), run(4.0)
    return whole.results["lr"], whole.results["loss"], usual.suggestion()


def unsmoothed(losses: list[float], beta: float = 0.98) -> list[float]:
    """Return the loss of each update from Lightning's averages, whose correction is of one update more than there were."""
    averages = [0.0, *(loss * (1 - beta ** (place + 2)) for place, loss in enumerate(losses))]
    return [(now - beta * before) / (1 - beta) for before, now in itertools.pairwise(averages)]


def deviation(losses: list[float], reference: list[float]) -> dict[str, float]:
    """Over all updates, and over those before the loss has doubled: what comes later amplifies each rounding."""
    errors = [abs(a - b) / max(abs(b), 1e-6) for a, b in zip(losses, reference, strict=True)]
    end = next((place for place, loss in enumerate(reference) if not loss < 2 * reference[0]), len(reference))
    return {
        "updates": len(errors),
        "largest": max(errors),
        "before_divergence": max(errors[:end]),
        "until": end,
    }


def curves(train: TensorDataset) -> Iterator[dict[str, Any]]:
    for name, (model, optimizer) in TASKS.items():
        given, start = batches(train, 0), made(model, 0)
        rates, losses, _ = by_torch_lr_finder(start, optimizer, given)
        mine = by_us(copy.deepcopy(start), optimizer, given, rates, 0.0).curve
        yield {"task": name, "peer": "torch-lr-finder", **deviation([each.loss for each in mine], losses)}
        rates, smoothed, _ = by_lightning(start, optimizer, given)
        mine = by_us(copy.deepcopy(start), optimizer, given, rates, 0.0).curve[: len(smoothed)]
        yield {
            "task": name,
            "peer": "lightning",
            **deviation([each.loss for each in mine], unsmoothed(smoothed)),
        }


def trained(task: str, rate: float, seed: int, train: TensorDataset, test: TensorDataset) -> float:
    """Return the validation loss after training with the rate as the peak of a cosine with a warm-up."""
    model, optimizer = TASKS[task]
    tried = made(model, seed)
    stepping = OPTIMIZERS[optimizer](tried, rate)
    source, total = torch.Generator().manual_seed(seed), EPOCHS * (len(train) // ROWS)
    done = 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train), generator=source).split(ROWS)[: len(train) // ROWS]:
            warm = min(1.0, (done + 1) / (0.1 * total))
            stepping.param_groups[0]["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * done / total))
            stepping.zero_grad()
            nn.functional.cross_entropy(tried(train.tensors[0][rows]), train.tensors[1][rows]).backward()
            stepping.step()
            done += 1
    tried.eval()
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(tried(test.tensors[0]), test.tensors[1]))
    return loss if math.isfinite(loss) else 1e3


def suggestions(task: str, seed: int, train: TensorDataset) -> dict[str, float | None]:
    model, optimizer = TASKS[task]
    given, start = batches(train, seed), made(model, seed)
    rates: dict[str, float | None] = {
        "torch-lr-finder": by_torch_lr_finder(start, optimizer, given)[2],
        "lightning": by_lightning(start, optimizer, given)[2],
    }
    for smoothing in SMOOTHINGS:
        mine = by_us(copy.deepcopy(start), optimizer, given, None, smoothing)
        for rule, each in mine.suggestions.items():
            rates[f"{rule} {smoothing}"] = each.learning_rate
        if smoothing == ours.SMOOTHING:
            rates["recommended"] = mine.learning_rate
    return rates


def quality(task: str, train: TensorDataset, test: TensorDataset) -> dict[str, Any]:
    grid = {rate: statistics.fmean(trained(task, rate, seed, train, test) for seed in SEEDS) for rate in GRID}
    best = min(grid, key=lambda rate: grid[rate])
    rules: dict[str, dict[str, Any]] = {}
    for seed in SEEDS:
        for rule, rate in suggestions(task, seed, train).items():
            entry = rules.setdefault(rule, {"rates": [], "losses": []})
            if rate is not None:
                entry["rates"].append(rate)
                entry["losses"].append(trained(task, rate, seed, train, test))
    return {
        "task": task,
        "grid": {f"{rate:.3g}": loss for rate, loss in grid.items()},
        "best": best,
        "rules": rules,
    }


def readme(result: dict[str, Any], name: str) -> str:
    """Return the tables, from the JSON alone."""
    same = "\n".join(
        f"| {each['task']} | {each['peer']} | {each['updates']} | {each['largest']:.1e} |"
        for each in result["curves"]
    )
    tasks = result["quality"]
    head = (
        "| rule | "
        + " | ".join(f"{each['task']} (best {min(each['grid'].values()):.3f})" for each in tasks)
        + " |"
    )
    rows = "\n".join(
        f"| {rule} | " + " | ".join(_loss_and_rate(each["rules"][rule]) for each in tasks) + " |"
        for rule in tasks[0]["rules"]
    )
    settings, machine = result["settings"], result["machine"]
    return f"""# The range test beside its peers

## The same curve

Model, optimizer and batches are the same; our test is given the peer's rates. Largest relative difference of the loss of an
update, over all updates up to and behind the divergence (float32 rounds at 6e-8):

| task | peer | updates | largest difference |
|---|---|---|---|
{same}

The peers differ from us, and from each other, in what they make of these losses. torch-lr-finder smooths from the first loss on without
taking its weight out (ours, as fastai's, does), and counts the smoothed loss as diverged at 5 times its lowest value (4). Lightning's
rates leave out the second of its range (its first two steps are the exponents 0 and 2 of {settings["updates"]}), and its correction of
the first readings is that of one reading more than there are; it keeps smoothed losses only, of which those of the updates were worked
out. torch-lr-finder takes the steepest fall over the readings, Lightning over the rate itself rather than its logarithm.

## Are the rates good?

The validation loss after {settings["epochs"]} epochs with the suggested rate as the peak of a cosine with a warm-up, mean of
{len(settings["seeds"])} seeds, and the middle one of the suggested rates; beside each task the best of a grid of half decades. A rule of
ours is named with the smoothing.

{head}
|{"---|" * (len(tasks) + 1)}
{rows}

`recommended` is what `snugfit find lr` recommends: `minimum` with 0.95, or where that is more than 10 times as high as `valley` the lower
one of `minimum` and `steepest`. It is written for each seed of each task. These tasks train small nets from scratch for a short time, which
favours high rates: `steepest` is as good or better here. In fine-tuning it lies close to where the loss rises again: docs/tools/find.md.

Made by `run.py` from [{name}](results/{name}) of {result["date"]}: {machine["cores"]} cores, torch {machine["torch"]}.
"""


def _loss_and_rate(entry: dict[str, Any]) -> str:
    if not entry["losses"]:
        return "none"
    return f"{statistics.fmean(entry['losses']):.3f} at {statistics.median(entry['rates']):.2g}"


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    train, test = digits()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        same = list(curves(train))
        good = [quality(task, train, test) for task in TASKS]
    settings = {
        "start": START,
        "end": END,
        "updates": UPDATES,
        "rows": ROWS,
        "seeds": SEEDS,
        "epochs": EPOCHS,
    }
    path = write_result(HERE, {"settings": settings, "curves": same, "quality": good})
    (HERE / "README.md").write_text(readme(json.loads(path.read_text()), path.name))


if __name__ == "__main__":
    main()
