"""What the recipes of the fault tests train: its model does what it is told to at some update of some rank, once."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn

FAULT = "FAULT"
"""Names the variable with what is to happen: {"what": …, "rank": …, "update": …}. "memory" has "room" for so many rows, from then on."""


class Faulty(nn.Module):
    """A small net in float64; it counts its forwards in training, of which each update has one."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        self.updates = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.updates += 1
            fault = json.loads(os.environ.get(FAULT, "{}"))
            first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
            if fault.get("what") == "memory":
                if (
                    fault["rank"] == _rank()
                    and self.updates >= fault["update"]
                    and len(inputs) > fault["room"]
                ):
                    raise torch.OutOfMemoryError(f"no room for {len(inputs)} rows")
            elif fault and first and (fault["rank"], fault["update"]) == (_rank(), self.updates):
                _happen(fault["what"])
        logits: Tensor = self.body(inputs)
        return logits


class Points:
    """Points in the plane; the one that is told cannot be read."""

    def __init__(self, count: int = 40, unreadable: int | None = None) -> None:
        source = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 2, generator=source, dtype=torch.float64)
        self.unreadable = unreadable

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.unreadable:
            raise ValueError("it is torn")
        return self.inputs[index], (self.inputs[index].sum() > 0).long()


def make_points() -> Points:
    return Points()


def make_unreadable() -> Points:
    return Points(unreadable=33)


def make_unlike() -> Points:
    """Others on each rank."""
    return Points(count=40 + _rank())


def make_broken() -> Points:
    """None on the second rank."""
    return Points(count=40 * (_rank() == 0))


def accuracy(outputs: Any, data: Any) -> Tensor:
    return (outputs.argmax(dim=1) == data[1]).double()


def _rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def _happen(what: str) -> None:
    if what == "raise":
        raise ArithmeticError("it does not add up")
    if what == "hang":
        time.sleep(8)
    elif what.startswith("launcher "):  # and this process goes on once it has heard of it
        os.kill(os.getppid(), signal.Signals[what.removeprefix("launcher ")])
        stop = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
        while not stop.asked:
            time.sleep(0.01)
    else:
        os.kill(os.getpid(), signal.Signals[what])
