"""What do the labels of the phases cost where nobody watches? CPU time of updates with and without them, interleaved in one process.

    python benchmarks/profile/run.py

The contender without labels is the same step with each `with phase(...)` taken out of its source. The model is as small as a model
that is worth training can be, on one thread, so that a label is as much of an update as it will ever be. Beside that, the labels that
an update enters are counted, and one that is idle is timed by itself: their product is the cost by arithmetic.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import statistics
import sys
import time
import timeit
import types
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugfit.kit.phases import phase, watched
from snugfit.step import step, window_gradients
from snugfit.techniques import find

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import paired_ratio, write_result

ROWS, INPUTS, WIDTH, CLASSES = 32, 64, 128, 10
MICRO_BATCHES = {"one micro-batch": None, "four micro-batches": 8}


class _WithoutLabels(ast.NodeTransformer):
    """Takes `phase(...)` out of with statements, and statements of which nothing is left."""

    def __init__(self) -> None:
        self.taken = 0

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        items = [item for item in node.items if not _is_label(item.context_expr)]
        self.taken += len(node.items) - len(items)
        node.items = items
        return node if items else node.body


def _is_label(expression: ast.expr) -> bool:
    return (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Name)
        and expression.func.id == "phase"
    )


def without_labels() -> tuple[type, int]:
    """Return the class `Step` without labels, and how many were taken out of its source."""
    taken, made = 0, {}
    for module in (window_gradients, step):
        stripper = _WithoutLabels()
        tree = ast.fix_missing_locations(stripper.visit(ast.parse(inspect.getsource(module))))
        taken += stripper.taken
        bare = types.ModuleType(f"{module.__name__}_without_labels")
        sys.modules[bare.__name__] = bare  # where dataclasses look for their module
        exec(compile(tree, str(module.__file__), "exec"), vars(bare))
        made[module] = bare
    made[step].WindowCompute = made[window_gradients].WindowCompute
    return made[step].Step, taken


def make(micro_batch: int | None, bare_class: type) -> tuple[Any, Any]:
    """Return a step with labels and one without, of one model and one optimizer: their memory lies in the same places."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def one(step_class: type) -> Any:
        return step_class(model, optimizer, techniques=[find("clip_norm")(1.0)], micro_batch=micro_batch)

    return one(step.Step), one(bare_class)


def seconds_of(pair: tuple[Any, Any], batch: Any, updates: int) -> tuple[float, float]:
    """CPU seconds of an update of each of two steps, which take turns."""
    spent = [0.0, 0.0]
    for number in range(updates):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.process_time()
            pair[which](batch)
            spent[which] += time.process_time() - start
    return spent[0] / updates, spent[1] / updates


def labels_of(made: Any, batch: Any) -> dict[str, int]:
    entered: Counter[str] = Counter()

    def note(name: str) -> nullcontext[None]:
        entered[name] += 1
        return nullcontext()

    with watched(note):
        made(batch)
    return dict(entered)


def idle_seconds(repeats: int = 20, times: int = 100_000) -> float:
    """Return one label that nobody watches, without the loop around it."""

    def labelled() -> None:
        with phase("forward"):
            pass

    def bare() -> None:
        pass

    best = {each: min(timeit.repeat(each, number=times, repeat=repeats)) / times for each in (labelled, bare)}
    return best[labelled] - best[bare]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--updates", type=int, default=30, help="of each repeat, an even number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bare_class, taken = without_labels()
    assert taken >= 9, f"only {taken} labels were found in the step's source"
    batch = (torch.randn(ROWS, INPUTS), torch.arange(ROWS) % CLASSES)
    idle, figures = idle_seconds(), {}
    for name, micro_batch in MICRO_BATCHES.items():
        labelled, bare = make(micro_batch, bare_class)
        labels = labels_of(labelled, batch)
        assert not labels_of(bare, batch)
        seconds_of((labelled, bare), batch, 20)  # to warm up
        pair_seconds = [seconds_of((labelled, bare), batch, options.updates) for _ in range(options.repeats)]
        seconds = {
            "with": [one for one, _ in pair_seconds],
            "without": [other for _, other in pair_seconds],
        }
        update = statistics.median(seconds["without"])
        count = sum(labels.values())
        figures[name] = {
            "labels": labels,
            "seconds_per_update": update,
            "by_arithmetic": count * idle / update,
            "ratio": paired_ratio(seconds["with"], seconds["without"]),
            "seconds": seconds,
        }
        print(
            f"{name}: {count} labels of {idle * 1e9:.0f} ns, {count * idle / update:.2%} of {update * 1e6:.0f} µs;",
            end=" ",
        )
        print("measured {median:.4f} ({low:.4f} to {high:.4f})".format(**figures[name]["ratio"]))
    path = write_result(
        Path(__file__).parent, {"idle_label_seconds": idle, "settings": vars(options), "updates": figures}
    )
    print(path)


if __name__ == "__main__":
    main()
