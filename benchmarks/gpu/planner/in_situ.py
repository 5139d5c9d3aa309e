"""The host's part of an update, counted and timed: small transformers whose kernels take next to nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from checks import Settings, check, wait
from material import gpt2, tokens_window

from planner.predictions import calibrated

REPEATS = 9


def seconds_of_update(update: Callable[[], object], device: str) -> float:
    """Return the median seconds of an update that is waited for."""
    taken = []
    for _ in range(REPEATS):
        wait(device)
        began = time.perf_counter()
        update()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def counted(update: Callable[[], object], device: Any, at: str) -> dict[str, float]:
    """Return what an update has of each thing that the planner counts, its seconds, and what is left of them for a module."""
    from snugfit.planner.calibration.host_seconds import counted as counts_of

    count = counts_of(update)
    taken = seconds_of_update(update, at)
    counted_seconds = count.operators * device.host + count.views * device.view + count.modes * device.mode
    counted_seconds += count.around.packed * device.hook
    return {
        "operators": count.operators,
        "views": count.views,
        "modes": count.modes,
        "packed": count.around.packed,
        "calls": count.calls,
        "seconds": taken,
        "without calls": counted_seconds,
        "a call": (taken - counted_seconds) / max(count.calls, 1),
    }


@check("the host's seconds in its place", 30, alone=True, needs="device.pickle", modules=("transformers",))
def in_situ(settings: Settings) -> Mapping[str, Any]:
    """Count and time blocks as the calibration has them, and GPT-2 as a plain loop and as Snugfit's step, in float32, bf16 and recomputed."""
    import torch

    from planner.cases import step_of
    from snugfit.core.batch import Batch
    from snugfit.planner.calibration.microbenchmarks import small_step, transformer_step
    from snugfit.techniques.placement.recompute import recomputing

    device, at = calibrated(settings), torch.device(settings.device)
    figures: dict[str, Any] = {"calibrated": {"host": device.host, "call": device.call, "hook": device.hook}}
    for layers in settings.size((2, 8), (1, 2)):
        figures[f"{layers} encoder blocks"] = counted(transformer_step(at, layers), device, settings.device)
    figures["24 small layers"] = counted(small_step(at, 24), device, settings.device)
    settings.note(figures)
    model = gpt2(settings.device, settings.toy, tokens=64).to(settings.device)
    window = Batch.of(tokens_window(128, 2, settings.size(64, 16)))
    inputs = {name: each.to(settings.device) for name, each in window.data.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    def plain(half: bool) -> None:
        with torch.autocast(settings.device, torch.bfloat16, enabled=half):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def again() -> None:
        with recomputing(model.transformer.h):
            plain(False)

    figures["GPT-2, a loop, float32"] = counted(lambda: plain(False), device, settings.device)
    figures["GPT-2, a loop, bf16"] = counted(lambda: plain(True), device, settings.device)
    figures["GPT-2, a loop, recomputed"] = counted(again, device, settings.device)
    settings.note(figures)
    from material import technique

    for names in ((), ("bf16",), ("recompute",), ("bf16", "recompute")):
        techniques = (technique("adamw", learning_rate=1e-4), *(technique(name) for name in names))
        step = step_of(settings, model, window, "causal_lm", techniques, None)
        step(window)
        label = f"GPT-2, Snugfit, {', '.join(names) or 'float32'}"
        figures[label] = counted(lambda step=step: step(window), device, settings.device)
        settings.note(figures)
    return figures


@check("products with an odd side", 20, alone=True)
def odd_products(settings: Settings) -> Mapping[str, Any]:
    """Time the products of a head with 50,257 and with 50,304 words: half precision wants rows of a multiple of 16 bytes."""
    import torch

    rows, width = settings.size((4096, 768), (32, 16))
    figures: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for words in settings.size((50257, 50304), (257, 256)):
            hidden = torch.randn(rows, width, device=settings.device, dtype=dtype)
            weight = torch.randn(words, width, device=settings.device, dtype=dtype)
            gradient = torch.randn(rows, words, device=settings.device, dtype=dtype)
            products = {
                "forward": lambda a=hidden, b=weight: a @ b.t(),
                "to the hidden states": lambda a=gradient, b=weight: a @ b,
                "to the weight": lambda a=gradient, b=hidden: a.t() @ b,
            }
            for name, product in products.items():
                product()
                taken = seconds_of_update(product, settings.device)
                key = f"{str(dtype).removeprefix('torch.')}, {words} words, {name}"
                figures[key] = {"seconds": taken, "flops": 2 * rows * width * words / taken}
    settings.note(figures)
    return figures
