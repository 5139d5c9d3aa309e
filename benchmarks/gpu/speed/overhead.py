"""The cost of a run beside its arithmetic: small updates a second, and the time that checkpoints take from training."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from typing import Any

from checks import Settings, check, interleaved, require
from material import gpt2, technique, tokens_window


@check("updates of an MLP per second", 40, alone=True)
def mlp(settings: Settings) -> Mapping[str, Any]:
    """Time updates that compute next to nothing, beside a loop by hand: what is left is the host's."""
    import torch

    from snugfit import Step

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(
            settings.device
        )

    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 64, generator=source).to(settings.device)
    labels = (torch.arange(32) % 10).to(settings.device)
    updates = settings.size(200, 20)
    hand, fused = model(), settings.cuda
    optimizer = torch.optim.AdamW(hand.parameters(), lr=1e-3, fused=fused)
    step = Step(model(), technique("adamw", learning_rate=1e-3), "cross_entropy")

    def by_hand() -> None:
        for _ in range(updates):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(hand(inputs), labels)
            loss.backward()
            optimizer.step()
            loss.item()  # as a step reads it, to know whether it is finite

    def snugfit() -> None:
        for _ in range(updates):
            step((inputs, labels))

    seconds = interleaved(
        {"by hand": by_hand, "snugfit": snugfit}, settings.device, repeats=settings.size(9, 5)
    )
    rates = {name: updates / row["median"] for name, row in seconds.items()}
    more = (seconds["snugfit"]["median"] - seconds["by hand"]["median"]) / updates
    return {"seconds": seconds, "updates_per_second": rates, "microseconds more per update": more * 1e6}


@check("milliseconds that checkpoints block", 60, alone=True)
def saves(settings: Settings) -> Mapping[str, Any]:
    """Train with a checkpoint every few updates, written at once or meanwhile, and compare updates with and without one."""
    import snugfit as sf

    every, updates = 5, settings.size(30, 10)
    tokens, rows = settings.size((512, 8), (16, 2))
    data = tokens_window(settings.size(50257, 128), rows * updates, tokens)
    examples = [{name: tensor[row] for name, tensor in data.items()} for row in range(rows * updates)]
    figures: dict[str, Any] = {}
    for save in ("sync", "async"):
        marks: list[float] = []

        def display(event: Mapping[str, Any], marks: list[float] = marks) -> None:
            if event["event"] == "update":
                marks.append(time.perf_counter())

        sf.train(
            gpt2(settings.device, settings.toy, tokens),
            examples,
            loss="causal_lm",
            optimizer=technique("adamw", learning_rate=1e-4),
            techniques=[technique("bf16")],
            global_batch=rows,
            updates=updates,
            checkpoint_every=every,
            checkpoint_save=save,
            device=settings.device,
            output=settings.folder / save,
            track=False,
            display=display,
        )
        # between the marks of updates n and n + 1 lies the checkpoint of update n
        between = {
            place + 1: after - before for place, (before, after) in enumerate(itertools.pairwise(marks))
        }
        plain = [seconds for place, seconds in between.items() if place % every and place > 2]
        saving = [seconds for place, seconds in between.items() if place % every == 0]
        require(bool(plain and saving), f"{save}: no update was timed", marks=len(marks))
        usual = statistics.median(plain)
        figures[save] = {
            "milliseconds of an update": usual * 1e3,
            "milliseconds blocked": [round((seconds - usual) * 1e3, 2) for seconds in saving],
            "median blocked": (statistics.median(saving) - usual) * 1e3,
        }
        settings.note(figures)
    return figures
