"""How does what Snugfit does grow? A curve for each, with its exponent: 1 where twice as much takes twice as long, 0 where nothing changes.

    python benchmarks/growth/run.py                    all curves, some minutes; writes results/ and README.md
    python benchmarks/growth/run.py --only techniques  one of them; the others stay as they were measured last

CPU time of this process (that of the worker for plans), the least of the repeats, so that what else runs counts for less.
The exponent is that of the last two points, `log(y2 / y1) / log(x2 / x1)`: where constant costs no longer hide it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import write_result

import snugfit as sf
from snugfit.display.run_state import Standing
from snugfit.run.events import Events
from snugfit.tracking.spool import Spool

HERE = Path(__file__).parent
REPEATS = 5
UPDATES = (1_000, 10_000, 100_000, 1_000_000)

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Something that grows with something else; `points` yields both.

    `most` is the exponent that it may have: above it something is done again that was done before.
    """

    name: str
    of: str
    by: str
    unit: str
    most: float
    points: Callable[[], Iterator[Point]]


def least(work: Callable[[], None], times: int = 1) -> float:
    """Return the least CPU seconds of `times` calls, over the repeats."""
    work()
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(times):
            work()
        seconds.append((time.process_time() - start) / times)
    return min(seconds)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 32), torch.randint(0, 2, (count,))


def micro_batches() -> Iterator[Point]:
    window = rows(256)
    for count in (1, 4, 16, 64, 256):
        step = sf.Step(net(), sf.AdamW(), micro_batch=256 // count)
        yield count, 1e3 * least(lambda step=step: step(window) and None, 4)


class Many(nn.Module):
    """A model of many small weights, each used once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(4) for _ in range(count))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs[:, :4] @ torch.stack(list(self.weights)).T


def parameters() -> Iterator[Point]:
    window = (torch.randn(8, 32), torch.randint(0, 4, (8,)))
    for count in (10, 100, 1_000, 10_000):
        model = Many(count)
        by_hand = copy.deepcopy(model)
        step = sf.Step(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=True))
        optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1, foreach=True)

        def hand(model: nn.Module = by_hand, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(window[0]), window[1]).backward()
            optimizer.step()

        times = max(1, 400 // count)
        yield count, least(lambda step=step: step(window) and None, times) / least(hand, times)


def techniques() -> Iterator[Point]:
    window = rows(32)
    every = [
        sf.ClipNorm(1.0),
        sf.EMA(0.99),
        sf.LabelSmoothing(0.1),
        sf.Linear(),
        sf.ClipValue(1.0),
        sf.GradientNoise(),
        sf.SpikeGuard(),
        sf.Lookahead(),
        sf.Mixup(),
        sf.Focal(),
        sf.AdaptiveClip(),
        sf.LayerRates(),
    ]
    for count in (0, 3, 6, 9, 12):
        step = sf.Step(net(), sf.AdamW(), techniques=every[:count], total_updates=10**6)
        yield count + 1, 1e6 * least(lambda step=step: step(window) and None, 100)


def events() -> Iterator[Point]:
    for count in UPDATES:
        with tempfile.TemporaryDirectory() as folder, Spool(Path(folder, "events.jsonl")) as spool:
            start = time.process_time()
            write_updates(spool, count)
            yield count, time.process_time() - start


def write_updates(spool: Spool | Events, count: int) -> None:
    append = spool.append if isinstance(spool, Spool) else spool
    for number in range(count):
        metrics = {"loss": 1 / (number + 1), "learning_rate": 1e-3, "examples_per_second": 1e4}
        append("update", update=number, window=number, epoch=0.5, applied=True, metrics=metrics)


def event_files() -> Iterator[Point]:
    """Megabytes of the file that a run's updates are in."""
    for count in UPDATES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "events.jsonl")
            with Spool(path) as spool:
                write_updates(spool, count)
            yield count, path.stat().st_size / 1e6


def event_memory() -> Iterator[Point]:
    """Megabytes of Python's objects that a run keeps of its updates: with a folder what is shown, without one the last events too."""
    for count in UPDATES[1:]:
        display = Standing()
        tracemalloc.start()
        events = Events(None, lambda event, display=display: display.take(event, 0.0))
        write_updates(events, count)
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del events
        yield count, held_bytes / 1e6


@functools.cache
def reports() -> list[tuple[int, float, float]]:
    """Return updates, seconds to write the report, and megabytes that the process has grown by at most meanwhile."""
    from snugfit.report.page import write_report

    rows_of_points = []
    for count in UPDATES:
        with tempfile.TemporaryDirectory() as folder:
            result = sf.train(
                net(), TensorDataset(*rows(64)), updates=2, output=folder, track=False, display=None
            )
            assert result.run_dir is not None
            with Spool(Path(result.run_dir, "events.jsonl")) as spool:
                write_updates(spool, count)
            before, start = largest_kilobytes(), time.process_time()
            write_report(Path(result.run_dir))
            seconds = time.process_time() - start
            rows_of_points.append((count, seconds, (largest_kilobytes() - before) / 1e3))
    return rows_of_points


def largest_kilobytes() -> int:
    """Return the most memory that the process has had; what grows from point to point is seen in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def report() -> Iterator[Point]:
    yield from ((count, seconds) for count, seconds, _ in reports())


def report_memory() -> Iterator[Point]:
    yield from ((count, megabytes) for count, _, megabytes in reports()[1:])


def checkpoints() -> Iterator[Point]:
    """Seconds of a checkpoint over those of `dd` for as many bytes, both with a flush to the disk."""
    from snugfit.kit.serialize import pack
    from snugfit.run.checkpoint.checkpoint_files import write

    for megabytes in (4, 16, 64, 256):
        packed = pack({"weights": {"large": torch.ones(megabytes * 2**18)}})
        ratios = []
        for number in range(REPEATS):
            with tempfile.TemporaryDirectory(dir=HERE) as folder:
                start = time.perf_counter()
                write(Path(folder, "checkpoints", f"update-{number}"), packed, keep=1)
                ours = time.perf_counter() - start
                command = [
                    "dd",
                    "if=/dev/zero",
                    f"of={folder}/dd",
                    "bs=1M",
                    f"count={megabytes}",
                    "conv=fsync",
                ]
                start = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                ratios.append(ours / (time.perf_counter() - start))
        yield megabytes, min(ratios)


def plans() -> Iterator[Point]:
    """Seconds of a process that plans a Llama of that many blocks for a GPU that is not here."""
    script = """
import resource, sys
from transformers import LlamaConfig, LlamaForCausalLM
import torch, snugfit as sf
config = LlamaConfig(hidden_size=64, num_hidden_layers=int(sys.argv[1]), num_attention_heads=4, num_key_value_heads=2,
                     intermediate_size=160, vocab_size=4000)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
ids = torch.randint(0, 4000, (8, 64))
window = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
sf.plan(model, window, loss="causal_lm", optimizer=sf.AdamW(), device="t4", search=False)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used))
"""
    for blocks in (8, 32, 128):
        done = subprocess.run(
            [sys.executable, "-c", script, str(blocks)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        )
        yield blocks, float(done.stdout.split()[-1])


CURVES = (
    Curve(
        "micro_batches", "milliseconds of an update of 256 rows", "micro-batches", "ms", 1.05, micro_batches
    ),
    Curve("parameters", "an update over one by hand", "parameter tensors", "×", 0.1, parameters),
    Curve("techniques", "microseconds of an update", "techniques, and 1", "µs", 1.0, techniques),
    Curve("events", "seconds to write events", "updates", "s", 1.05, events),
    Curve("event_files", "MB of the file of events", "updates", "MB", 1.05, event_files),
    Curve("event_memory", "MB of events in memory", "updates", "MB", 0.05, event_memory),
    Curve("report", "seconds to write the report", "updates", "s", 1.2, report),
    Curve("report_memory", "MB that writing the report takes", "updates", "MB", 1.05, report_memory),
    Curve("checkpoints", "a checkpoint over dd", "MiB", "×", 0.3, checkpoints),
    Curve("plans", "CPU seconds of a plan", "blocks", "s", 0.2, plans),
)


def exponent(points: list[Point]) -> float:
    (x1, y1), (x2, y2) = points[-2:]
    return math.log(y2 / y1) / math.log(x2 / x1)


def page(table: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# How what Snugfit does grows",
        "",
        "`python benchmarks/growth/run.py`; CPU time, the least of five, on the machine of the file of that day in `results/`. The exponent is that of the last two",
        "points: 1 where twice as much takes twice as long, 0 where nothing changes.",
        "",
        "| what | over | points | exponent | may be | measured |",
        "|---|---|---|---|---|---|",
    ]
    for curve in CURVES:
        if curve.name in table:
            row = table[curve.name]
            points = ", ".join(f"{x:,.0f}: {y:.3g} {curve.unit}" for x, y in row["points"])
            lines.append(
                f"| {curve.of} | {curve.by} | {points} | {row['exponent']:.2f} | {curve.most} | {row['date']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[each.name for each in CURVES])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = measured_last() if options.only else {}
    for curve in CURVES:
        if options.only and curve.name not in options.only:
            continue
        points = list(curve.points())
        table[curve.name] = {
            "points": points,
            "exponent": exponent(points),
            "date": time.strftime("%Y-%m-%d"),
        }
        print(curve.of, [(x, round(y, 4)) for x, y in points], f"exponent {exponent(points):.2f}", flush=True)
    write_result(HERE, {"curves": table})
    (HERE / "README.md").write_text(page(table))


def measured_last() -> dict[str, dict[str, Any]]:
    """Return the curves of the newest file, each with the day on which it was measured."""
    newest = json.loads(max((HERE / "results").glob("*.json")).read_text())
    return {name: {"date": newest["date"], **row} for name, row in newest["curves"].items()}


if __name__ == "__main__":
    main()
