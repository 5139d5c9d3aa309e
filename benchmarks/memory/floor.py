"""How far above its floor does full fine-tuning in fp32 peak, and what else is held there?

    python benchmarks/memory/floor.py            a minute on an idle core; writes results/floor-DATE.json and floor.md

The floor is 3 copies of the weights and one block's with `optimizer_in_backward`, else 4 copies: weights, both moments of AdamW and gradients. The
model and its window are those of the ladder in README.md. Peaks are those of the planner's dry run, which makes the update without numbers and
counts every tensor: to the MiB those of torch's allocation events, which the ladder was measured by, and no load moves them.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import torch  # noqa: E402
from common import write_result  # noqa: E402
from contenders import LEARNING_RATE, SIZES  # noqa: E402
from torch import nn  # noqa: E402

MIB = 2**20
RUNGS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "chunked_loss": {"chunked_loss": {}},
    "+ recompute": {"chunked_loss": {}, "recompute": {}},
    "+ recompute by rows": {"chunked_loss": {}, "recompute": {"rows": 1}},
    "recompute, optimizer_in_backward": {"chunked_loss": {}, "recompute": {}, "optimizer_in_backward": {}},
    "by rows, optimizer_in_backward": {
        "chunked_loss": {},
        "recompute": {"rows": 1},
        "optimizer_in_backward": {},
    },
    "by rows, every second input, optimizer_in_backward": {
        "chunked_loss": {},
        "recompute": {"rows": 1, "inputs_every": 2},
        "optimizer_in_backward": {},
    },
}
ROWS = (1, 2, 4, 8)
MOST_PIECES = 7


def measured(settings: dict[str, dict[str, Any]], rows: int) -> dict[str, Any]:
    """Return the peak of an update of some rows, its floor, and the largest pieces beside weights and moments."""
    from snugfit.core.batch import Batch
    from snugfit.core.job import Job, Plan, Train
    from snugfit.planner.cost.records import Phase, Role
    from snugfit.planner.trace.dry_run import Subject, dry_run
    from snugfit.techniques import find

    size = SIZES["full"]

    def model() -> nn.Module:
        from transformers import LlamaForCausalLM

        with torch.device("meta"):
            return LlamaForCausalLM(size.config())

    ids = torch.zeros(rows, size.sequence, dtype=torch.long)
    named = {"adamw": {"learning_rate": LEARNING_RATE, "weight_decay": 0.0}, **settings}
    named |= {"chunked_loss": {"chunk": size.chunk}} if "chunked_loss" in named else {}
    techniques = tuple(find(name)(**given) for name, given in named.items())
    job = Job(train=Train(epochs=None, updates=2, global_batch=rows))
    window = Batch.of({"input_ids": ids, "labels": ids})
    trace = dry_run(
        Subject(model, window, job, rows, techniques, loss="causal_lm"), Plan(micro_batch=None), techniques
    )
    outside = {Phase.SETUP, Phase.PRIME, Phase.EVALUATION, Phase.SAVE}
    held: dict[int, None] = {}
    now = peak = place = 0
    at_peak: list[int] = []
    for event, (number, storage, sign) in enumerate(trace.changes()):
        while place + 1 < len(trace.ops) and trace.ops[place + 1].event <= event:
            place += 1
        now += sign * storage.bytes
        held.update({number: None}) if sign > 0 else held.pop(number)
        if now > peak and trace.ops[place].place.phase not in outside:
            peak, at_peak = now, list(held)
    pieces: Counter[str] = Counter()
    for storage in (trace.storages[number] for number in at_peak):
        if storage.role in (Role.WEIGHTS, Role.OPTIMIZER):
            continue
        made = trace.ops[storage.op].place if storage.op >= 0 else None
        where = (made.module or made.phase.value) if made is not None and made.block < 0 else "blocks"
        pieces[f"{storage.role.value} of {where}"] += storage.bytes
    weights, block = sum(trace.parts.blocks) + trace.parts.outside, max(trace.parts.blocks)
    floor = 3 * weights + block if "optimizer_in_backward" in settings else 4 * weights
    return {
        "rows": rows,
        "peak_bytes": peak,
        "floor_bytes": floor,
        "ratio": peak / floor,
        "pieces": dict(pieces.most_common(MOST_PIECES)),
    }


def page(rungs: dict[str, dict[str, Any]], date: str) -> str:
    lines = [
        "# How far above its floor full fine-tuning in fp32 peaks",
        "",
        f"`python benchmarks/memory/floor.py`, {date}. The Llama of 134M parameters of README.md, AdamW, rows of 512 tokens, by the planner's dry run: bytes,",
        "which no load moves. The floor is 4 copies of the weights, with `optimizer_in_backward` 3 copies and one block's.",
        "",
        "| rung | rows | peak, MiB | floor, MiB | ratio | beside weights and moments at the peak, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rungs.items():
        pieces = ", ".join(
            f"{piece} {size / MIB:,.0f}" for piece, size in row["pieces"].items() if size > MIB
        )
        lines.append(
            f"| {name.partition(' @')[0]} | {row['rows']} | {row['peak_bytes'] / MIB:,.0f} | {row['floor_bytes'] / MIB:,.0f} | {row['ratio']:.2f} | {pieces} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    rungs = {}
    for name, settings in RUNGS.items():
        for rows in ROWS if "recompute" in settings else ROWS[-1:]:
            rungs[f"{name} @{rows}"] = measured(settings, rows)
            print(name, rows, json.dumps(rungs[f"{name} @{rows}"]), flush=True)
    write_result(HERE, {"rungs": rungs}, "floor")
    (HERE / "floor.md").write_text(page(rungs, time.strftime("%Y-%m-%d")))


if __name__ == "__main__":
    main()
