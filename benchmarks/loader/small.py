"""Small rows and token caches: windows a second of the loader over those of torch's DataLoader, without workers and with some.

    python benchmarks/loader/small.py [--seconds 2] [--turns 5] [--workers 0 1 2]

Both get the same data set, collate function, batch size and workers, and take turns in one process of one thread; the ratio is that of the fastest
turns. What this process does alone is counted in its seconds of processor; workers are timed by the clock, on an idle machine. Rows of 32 numbers in
tensors, dicts of such rows, and tokens of texts of a median of 25, in arrays that are mapped from a file as the token cache has them: as they are,
and with tokens hidden anew in each epoch. Writes results/small-DATE.json and small.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import machine, write_result  # noqa: E402
from run import rate_of  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

ROWS, BATCHES = 4_000, (8, 32, 128)


def data_sets(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return data sets by name, each with its collate function."""
    from snugfit.data.examples import Examples
    from snugfit.data.texts.masked import MaskedTexts, Masks
    from snugfit.data.texts.token_rows import TokenRows, mapped_array
    from snugfit.data.texts.tokens import PadRight

    drawn = np.random.default_rng(0)
    numbers, labels = torch.randn(ROWS, 32), torch.randint(0, 4, (ROWS,))
    lengths = np.clip(drawn.lognormal(3.2, 0.8, ROWS).astype(int), 3, 256)
    tokens = drawn.integers(5, 2_000, int(lengths.sum())).astype(np.uint16)
    tokens.tofile(folder / "tokens")
    mapped = mapped_array(str(folder / "tokens"), "uint16", 0, tokens.shape)
    lists = {"input_ids": mapped, "attention_mask": np.broadcast_to(np.array(1, np.uint8), tokens.shape)}
    texts = TokenRows(lists, np.cumsum(lengths))
    pad = PadRight({"input_ids": 0, "attention_mask": 0, "labels": -100})
    masks = Masks(4, np.arange(5), np.arange(5, 2_000))
    return {
        "rows of tensors": (TensorDataset(numbers, labels), None),
        "dicts": ([{"x": row, "labels": label} for row, label in zip(numbers, labels, strict=True)], None),
        "token cache": (Examples(texts.with_values(labels=labels.tolist()), "texts", range(ROWS)), pad),
        "token cache, hidden tokens": (MaskedTexts(Examples(texts, "texts", range(ROWS)), masks), pad),
    }


def measured(data: Any, collate: Any, rows: int, workers: int, seconds: float, turns: int) -> dict[str, Any]:
    """Return the examples a second of both, by their fastest turns, and the ratio."""
    from snugfit.data.loader import Loader
    from snugfit.data.order import Order

    raw: dict[str, list[float]] = {"snugfit": [], "torch": []}
    for _ in range(turns):
        order = Order(ROWS, rows, windows=10**6)
        with contextlib.closing(
            Loader(data, order, collate, num_workers=workers).windows(0, 10**6)
        ) as windows:
            raw["snugfit"].append(rate_of(windows, rows, seconds, workers))
        theirs = DataLoader(
            data, rows, shuffle=True, collate_fn=collate, num_workers=workers, drop_last=True,
            persistent_workers=workers > 0,
        )  # fmt: skip
        batches = itertools.chain.from_iterable(itertools.repeat(theirs))
        raw["torch"].append(rate_of(batches, rows, seconds, workers))
    best = {who: max(rates) for who, rates in raw.items()}
    return {"examples_per_second": best, "ratio": best["snugfit"] / best["torch"], "raw": raw}


def page(table: dict[str, dict[str, Any]], load: float | None, cores: int) -> str:
    lines = [
        "# Small rows and token caches beside torch's DataLoader",
        "",
        f"`python benchmarks/loader/small.py`, {time.strftime('%Y-%m-%d')}. Examples a second, Snugfit's over torch's; seconds of processor without workers, of the clock with them.",
    ]
    if load is not None and load > cores:
        lines.append(
            f"Measured at a load of {load:.0f} on {cores} cores, in turns: the ratios count, not the rates."
        )
    lines += [
        "",
        "| data | rows of a batch | workers | snugfit | torch | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        data, rows, workers = name.split(" @ ")
        both = [f"{row['examples_per_second'][who]:,.0f}" for who in ("snugfit", "torch")]
        lines.append(f"| {data} | {rows} | {workers} | {both[0]} | {both[1]} | {row['ratio']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (data, collate) in data_sets(Path(folder)).items():
            for rows, workers in itertools.product(BATCHES, options.workers):
                key = f"{name} @ {rows} @ {workers}"
                table[key] = measured(data, collate, rows, workers, options.seconds, options.turns)
                print(key, {**table[key]["examples_per_second"], "ratio": table[key]["ratio"]}, flush=True)
    described = machine()
    write_result(HERE, {"turns": options.turns, "seconds": options.seconds, "table": table}, "small")
    (HERE / "small.md").write_text(page(table, described["load"], described["cores"]))


if __name__ == "__main__":
    main()
