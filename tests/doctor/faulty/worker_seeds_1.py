"""The data set has a generator of its own, of which every worker gets a copy in the same state."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Jittered(Dataset):
    def __init__(self) -> None:
        self.draws = np.random.default_rng(3)
        self.series = self.draws.standard_normal((64, 12)).astype("float32")

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.series[place] * self.draws.uniform(0.9, 1.1)
        return torch.from_numpy(row.astype("float32")), torch.tensor([row.mean()], dtype=torch.float32)


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Jittered(), batch_size=8, shuffle=True, num_workers=2)  # <- here
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for rows, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), targets).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
