"""Stochastic weight averaging: Izmailov et al. 2018, arXiv:1803.05407, algorithm 1."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w_SWA = Σ_k w_(s + kc) / n`: the weights after update s, and after every c updates from there; before, the last."""
    members: list[Named] = []

    def after(update: int) -> None:
        if update >= settings["start"] and (update - settings["start"]) % settings["every"] == 0:
            members.append(weights(model))

    trained = plain_sgd(model, windows, gradient_of, after=after)
    if not members:
        return trained
    mean = {name: sum(member[name] for member in members) / len(members) for name in members[0]}
    return Trained(trained.weights, mean, trained.losses)
