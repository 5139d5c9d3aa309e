"""A run's folder as training would leave it, without training."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snugfit.tracking.spool import Spool

RECIPE = """\
name: agnews
task: text-classification
model: sentence-transformers/all-MiniLM-L6-v2
data: {train: train.csv, validation: 0.1, text: [title, text], label: label, max_length: 128, bad_rows: skip}
train: {epochs: 3, global_batch: 32, seed: 0}
optimizer: {adamw: {learning_rate: 5.0e-5, weight_decay: 0.01}}
schedule: {linear: {warmup: 0.1}}
techniques:
  - clip_norm: {max_norm: 1.0}
  - ema: {decay: 0.999}
evaluate: {every: epoch, metrics: [accuracy, macro_f1], best: accuracy}
track: {mlflow: true, uri: null, experiment: snugfit, register: agnews}
output: runs
"""
PLAN = {"micro_batch": 16, "numerics": "fp32", "device": "cpu", "num_workers": 0, "deterministic": True}
RUN: dict[str, Any] = {
    "recipe": {
        "name": "agnews",
        "task": "text-classification",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "evaluate": {"every": "epoch", "metrics": ["accuracy", "macro_f1"], "best": "accuracy"},
    },
    "plan": PLAN,
    "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0", "snugfit": "0.1.0"},
    "machine": {"processor": "AMD EPYC 7B13", "cores": 2, "memory_bytes": 8 * 2**30, "device": "cpu"},
    "parameters": {"total": 22_714_756, "trainable": 22_714_756},
    "data": {
        "train": 5400,
        "validation": 600,
        "skipped": {"empty text": 7, "missing label": 5},
        "max_length": 128,
        "truncated": 0,
        "tokens_total": 243_000,
        "tokens_max": 97,
        "labels": {"World": 1341, "Sports": 1377, "Business": 1326, "Sci/Tech": 1356},
    },
}


def write_run(
    run_dir: Path,
    *,
    updates: int = 507,
    total_updates: int | None = None,
    evaluations: int = 6,
    skipped: int = 3,
    resume_at: int | None = None,
    status: str | None = "finished",
    name: str = "agnews",
    metrics: Callable[[int], dict[str, float]] = lambda update: {},
) -> Path:
    """Write recipe, plan and events of a plausible text-classification run; `status=None` writes no end.

    Args:
        resume_at: the update of a checkpoint to which the run, killed 40 updates later, went back.
        metrics: overrides of what each update measured.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (run_dir / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    draw, total = random.Random(0), total_updates or updates
    clock, every = 1_780_000_000.0, max(1, updates // max(1, evaluations))
    skipped_updates = set(draw.sample(range(1, updates + 1), skipped)) if skipped else set()

    def learned(update: int) -> float:
        return 1 - math.exp(-5 * update / total)

    def one_update(update: int) -> dict[str, Any]:
        warmup, done = 0.1 * total, update / total
        measured = {
            "loss": 1.39 - 1.15 * learned(update) + draw.gauss(0, 0.09) * (1.3 - learned(update)),
            "gradient_norm": abs(draw.gauss(4.2 - 2.4 * learned(update), 0.9)),
            "learning_rate": 5e-5 * min(update / warmup, (1 - done) / 0.9 + 1e-9),
            "examples_per_second": 46 + draw.gauss(0, 2.5) - (18 if update % 97 == 0 else 0),
            "memory_bytes": int(1.31 * 2**30 + 60e6 * min(1.0, update / 30)),
        }
        return measured | metrics(update)

    with Spool(run_dir / "events.jsonl") as spool:
        run = RUN | {
            "name": name,
            "id": run_dir.name,
            "total_updates": total,
            "updates_per_epoch": max(1, total // 3),
        }
        spool.append("run", time=clock, **run)
        spool.append(
            "warning", time=clock + 1, message="The tracker at its address does not answer; events are kept."
        )
        update, window, killed, best = 0, 0, False, -1.0
        windows = {}
        last: dict[str, float] = {}
        while update < updates:
            update, window, clock = update + 1, window + 1, clock + 0.69
            if update in skipped_updates:
                spool.append("skipped", time=clock, window=window, reason="the gradient is not finite")
                window += 1
            windows[update] = window
            spool.append(
                "update",
                time=clock,
                update=update,
                window=window,
                epoch=update * 3 / total,
                applied=True,
                metrics=one_update(update),
            )
            if evaluations and (update % every == 0 or update == updates):
                accuracy = 0.25 + 0.665 * learned(update) ** 0.6 - (0.006 if update > 0.8 * updates else 0)
                last = {
                    "loss": 1.36 - 1.06 * learned(update),
                    "accuracy": accuracy,
                    "macro_f1": accuracy - 0.008,
                }
                spool.append(
                    "evaluation",
                    time=clock + 4,
                    update=update,
                    epoch=update * 3 / total,
                    metrics=last,
                    weights="ema",
                    best=accuracy > best,
                    seconds=3.9,
                )
                best, clock = max(best, accuracy), clock + 4
                spool.append(
                    "checkpoint",
                    time=clock,
                    update=update,
                    path=f"checkpoints/update-{update:08d}",
                    seconds=0.61,
                )
            if resume_at is not None and not killed and update == resume_at + 40:
                killed, update, clock = True, resume_at, clock + 3600
                window = windows[resume_at]
                spool.append("resume", time=clock, update=update, window=window)
        if status is not None:
            spool.append(
                "end",
                time=clock,
                status=status,
                stop_reason=_reason(status),
                resumable=status != "finished",
                updates=updates,
                epochs=updates * 3 / total,
                last=last,
                best=None,
                seconds=0.69 * updates + 24,
                examples_per_second=45.8,
                peak_memory_bytes=int(1.42 * 2**30),
                tracker_run_id="8f3c",
            )
        if status == "finished":
            spool.append(
                "register",
                time=clock + 9,
                name="agnews",
                version=4,
                alias="champion",
                compared={"rows": 32, "max_abs_difference": 2.4e-7},
                uri="https://ana:secret@mlflow.example.org/agnews/4",
            )
    return run_dir


def _reason(status: str) -> str:
    return {
        "finished": "All 3 epochs are done.",
        "stopped": "Time is up: --stop-after 4m.",
        "failed": "30 windows in a row had no finite gradient.\nLower optimizer.adamw.learning_rate.",
    }[status]
