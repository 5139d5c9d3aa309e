"""Sequence length warm-up: Li et al. 2021, arXiv:2108.06084, section 4: the length grows linearly, longer texts are cut."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`seqlen_t = s + (e − s) · min(t/T, 1)`, in steps of the increment, e being the width of the window."""
    warmup = round(settings["fraction"] * total)
    updates = iter(range(total))

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        update = next(updates)
        end = window["input_ids"].shape[1]
        length = end
        if update < warmup and settings["initial"] < end:
            risen = (end - settings["initial"]) * update / warmup
            length = settings["initial"]
            while length + settings["increment"] - settings["initial"] <= risen + 1e-9:
                length += settings["increment"]
        cut = {name: window[name][:, :length] for name in ("input_ids", "attention_mask", "labels")}
        return gradient_of(model, {**window, **cut})

    return plain_sgd(model, windows, direction)
