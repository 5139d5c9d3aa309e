"""What does each way of a thinner update give? CPU time of an update with and without it, in turns in one process.

    python benchmarks/overhead/ways.py [WAY ...] [--turns 15]

The network and the window are those of `run.py --task mlp`: 32 numbers of 8 rows, 250 to 350 microseconds by hand. A way that is in is taken out; of
one that is not, what it could save at most is left out of the update. The figure is the least of the turns, so that what else runs counts for
less. Writes results/ways-DATE.json and ways.md.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from common import machine, write_result  # noqa: E402
from run import mlp  # noqa: E402
from torch import nn  # noqa: E402

UPDATES, EVENTS = 400, 4_000
Turn = Callable[[], float]
"""Returns CPU seconds of one update, or of what is counted in its place."""


def cpu_seconds(work: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - start) / count


def stepped(window: Any = None) -> tuple[Any, Callable[[], object]]:
    """Return a step of the network of `run.py`, and an update as a user's own loop makes it."""
    import snugfit as sf

    setting = mlp()
    step = sf.Step(
        setting.model,
        setting.optimizer(setting.model),
        lambda outputs, batch: F.cross_entropy(outputs, batch[1], reduction="none"),
    )
    given = setting.batch if window is None else window(setting.batch)
    step(given)
    return step, lambda: step(given)


def without(*changes: tuple[str, Any]) -> tuple[Turn, Turn]:
    """Return a turn with a way, and one in which something else stands in its place."""
    _, work = stepped()

    def changed() -> float:
        with contextlib.ExitStack() as stack:
            for place, instead in changes:
                stack.enter_context(patch(place, instead))
            return cpu_seconds(work, UPDATES)

    return lambda: cpu_seconds(work, UPDATES), changed


def wrappers() -> tuple[Turn, Turn]:
    return without(
        ("snugfit.step.step.step_optimizer", lambda optimizer: optimizer.step()),
        ("snugfit.step.window_gradients.backward", lambda values, gradient: values.backward(gradient)),
    )


def straight() -> tuple[Turn, Turn]:
    _, work = stepped()
    other, roundabout = stepped()
    other.plain = False
    return lambda: cpu_seconds(work, UPDATES), lambda: cpu_seconds(roundabout, UPDATES)


def seeds() -> tuple[Turn, Turn]:
    def nothing(*_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    with_seeds, none = without(
        ("snugfit.step.window_gradients.seed_device", lambda *_: None),
        ("snugfit.step.step.preserved_randomness", nothing),
    )
    return none, with_seeds


def structure() -> tuple[Turn, Turn]:
    """Return the most that a remembered structure could save: a `Batch` that is made before needs no look at what it holds."""
    from snugfit.core.batch import Batch

    (_, known), (_, looked_at) = stepped(Batch.of), stepped()
    return lambda: cpu_seconds(known, UPDATES), lambda: cpu_seconds(looked_at, UPDATES)


def events_of_numbers() -> tuple[Turn, Turn]:
    direct, searched = writing(), writing()

    def other() -> float:
        with patch("snugfit.tracking.spool.is_of_numbers", lambda _: False):
            return searched()

    return direct, other


def writing() -> Turn:
    from snugfit.tracking.spool import Spool

    folder = tempfile.mkdtemp()
    spool, count = Spool(Path(folder, "events.jsonl")), iter(range(10**9))
    return lambda: cpu_seconds(lambda: append(spool, next(count)), EVENTS)


def append(spool: Any, number: int) -> None:
    metrics = {"loss": 1 / (number + 1), "learning_rate": 1e-3, "examples_per_second": 1e4}
    spool.append("update", update=number, window=number, epoch=0.5, applied=True, metrics=metrics)


def events_by_thread() -> tuple[Turn, Turn]:
    """Events formatted and written by a thread of its own, and where they come about; CPU time of the process, which is what others lose."""
    from snugfit.tracking.spool import Spool

    folder = tempfile.mkdtemp()

    def thread() -> float:
        waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        with Spool(Path(folder, "thread.jsonl")) as spool:

            def write() -> None:
                while (number := waiting.get()) is not None:
                    append(spool, number)

            writer = threading.Thread(target=write)
            start = time.process_time()
            writer.start()
            for number in range(EVENTS):
                waiting.put(number)
            waiting.put(None)
            writer.join()
            return (time.process_time() - start) / EVENTS

    return thread, writing()


def fused() -> Iterator[tuple[str, Turn, Turn]]:
    for tensors, size in ((4, 1_000), (1_000, 100), (8, 1_000_000)):
        turns = []
        for options in ({"fused": True}, {"foreach": True}):
            parameters = [nn.Parameter(torch.randn(size)) for _ in range(tensors)]
            for parameter in parameters:
                parameter.grad = torch.randn(size)
            optimizer = torch.optim.AdamW(parameters, lr=1e-3, **options)
            count = max(4, min(200, 20_000 // tensors, 20_000_000 // (tensors * size)))
            turns.append(lambda step=optimizer.step, count=count: cpu_seconds(step, count))
        yield f"fused AdamW in place of foreach, {tensors:,} tensors of {size:,}", *turns


WAYS: dict[str, tuple[str, Callable[[], Any]]] = {
    "wrappers": ("torch's labels and looks around `step` and `backward` left out", wrappers),
    "straight": ("one micro-batch on one device goes a straight way", straight),
    "seeds": ("no seeds and no generator's state, for models that draw nothing (not in)", seeds),
    "structure": ("the structure of the last batch is remembered: its look left out (not in)", structure),
    "events": ("an event of numbers is not searched for secrets: of an event", events_of_numbers),
    "thread": ("events are written by a thread (not in): of an event", events_by_thread),
    "fused": ("", fused),
}


def page(rows: dict[str, dict[str, float]]) -> str:
    lines = [
        "# Ways of a thinner update, one by one",
        "",
        f"`python benchmarks/overhead/ways.py`, {time.strftime('%Y-%m-%d')}, {machine()['processor']}: least CPU time of turns, in microseconds.",
        "",
        "| way | with it | without it | saves |",
        "|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['with']:,.1f} | {row['without']:,.1f} | {row['saves']:.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", help=", ".join(WAYS))
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    if unknown := {*options.ways} - {*WAYS}:
        raise SystemExit(f"no way {min(unknown)}: choose from {', '.join(WAYS)}")
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {}
    for way in options.ways or WAYS:
        name, make = WAYS[way]
        for shown, with_it, without_it in make() if way == "fused" else [(name, *make())]:
            seconds: list[tuple[float, float]] = [(with_it(), without_it()) for _ in range(options.turns + 1)]
            with_way, other = (1e6 * min(column) for column in zip(*seconds[1:], strict=True))
            rows[shown] = {"with": with_way, "without": other, "saves": 1 - with_way / other}
            print(shown, rows[shown], flush=True)
    if not options.ways:
        write_result(HERE, {"turns": options.turns, "microseconds": rows}, "ways")
        (HERE / "ways.md").write_text(page(rows))


if __name__ == "__main__":
    main()
