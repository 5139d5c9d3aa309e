"""Workers that draw numbers of their own: by a seed of torch, of the system, or drawn; by their number; by a generator that is made in the worker."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Jittered(Dataset):
    def __init__(self) -> None:
        self.series = np.random.default_rng(3).standard_normal((32, 12)).astype("float32")
        self.draws = None

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.draws is None:
            self.draws = np.random.default_rng(torch.initial_seed() % 2**32)
        row = self.series[place] * self.draws.uniform(0.9, 1.1) + 0.01 * np.random.randn()
        return torch.from_numpy(row.astype("float32")), torch.tensor([row.mean()], dtype=torch.float32)


def of_torch(worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def of_number(worker: int) -> None:
    np.random.seed(100 + worker)


def of_system(worker: int) -> None:
    np.random.seed()


def of_a_draw(worker: int) -> None:
    np.random.seed(random.randint(0, 2**31))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for function in (of_torch, of_number, of_system, of_a_draw, None):
        loader = DataLoader(Jittered(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=function)
        for rows, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows), targets).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
