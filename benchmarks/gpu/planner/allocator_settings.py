"""The allocator with classic and with expandable segments, on windows of changing lengths: what each reserves and how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from checks import Settings, check, release
from material import LLAMAS, llama, on, technique, tokens_window

from planner.cases import timed

UPDATES = 24


@check("classic and expandable segments beside each other", 60, alone=True)
def segments(settings: Settings) -> Mapping[str, Any]:
    """Train on windows of many lengths, which is what tears memory into pieces, under each setting."""
    import torch

    from snugfit import Step

    shape = settings.size("small", "toy")
    longest = settings.size(1024, 32)
    figures: dict[str, Any] = {}
    for setting in ("False", "True"):
        release(settings.device)
        if settings.cuda:
            torch.cuda.memory._set_allocator_settings(f"expandable_segments:{setting}")
            torch.cuda.reset_peak_memory_stats()
        model = llama(shape, longest, settings.device)
        step = Step(
            model, technique("adamw", learning_rate=1e-4), "causal_lm", [technique("bf16")], micro_batch=8
        )
        drawn = torch.Generator().manual_seed(0)
        seconds = []
        for number in range(settings.size(UPDATES, 3)):
            tokens = int(torch.randint(longest // 8, longest + 1, (1,), generator=drawn))
            window = on(settings.device, tokens_window(LLAMAS[shape]["vocabulary"], 16, tokens, number))
            seconds.append(timed(step, window, settings.device))
        figures[f"expandable_segments:{setting}"] = {
            "median seconds": statistics.median(seconds),
            "total seconds": sum(seconds),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated() if settings.cuda else None,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved() if settings.cuda else None,
        }
        settings.note(figures)
        del model, step
    return figures
