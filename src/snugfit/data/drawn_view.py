"""Views of examples: drawn as those to train on are, and the same whenever they are asked for."""

from __future__ import annotations

from typing import Any

import torch

from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.data.examples import FromRows

_CPU = torch.device("cpu")


class DrawnView(FromRows):
    """Examples whose changes are drawn by a number and their places.

    Args:
        examples: that draw from torch's global generator.
    """

    def __init__(self, examples: Any, number: int) -> None:
        super().__init__(examples.rows, alike=True)
        self._examples, self._number = examples, number

    def __getitem__(self, place: int) -> Any:
        with preserved_randomness(_CPU):
            seed_device(derive_seed(self._number, "view", place), _CPU)
            return self._examples[place]
