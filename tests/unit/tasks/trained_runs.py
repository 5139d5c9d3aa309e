"""What the laws of a task do with its runs: end one early, look at what one learned."""

from __future__ import annotations

from pathlib import Path

import torch

from snugfit.run.trained_model import load


class AfterWindows:
    """A stop of a run, after so many of its windows."""

    def __init__(self, windows: int) -> None:
        self.windows = windows

    def __call__(self) -> str | None:
        self.windows -= 1
        return None if self.windows else "enough"


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of the model in a run's folder."""
    return load(run).model.state_dict()
