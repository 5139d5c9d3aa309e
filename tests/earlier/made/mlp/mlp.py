"""A model and data of a user's own, slow enough to be stopped on the way."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import Dataset


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


class Points(Dataset):
    """Points in the plane, and on which side of a line each is."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.01)
        point = torch.tensor([(index * 7 % 50) / 25 - 1, (index * 11 % 50) / 25 - 1])
        return point, int(point.sum() > 0)


def make_points() -> Dataset:
    return Points()
