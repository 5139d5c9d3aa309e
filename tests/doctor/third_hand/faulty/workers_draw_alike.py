"""Image regression with augmentation."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, rows):
        source = np.random.default_rng(0)
        self.images = source.standard_normal((rows, 8, 8)).astype("float32")
        self.targets = self.images.mean((1, 2))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        noise = np.random.normal(0, 0.1, (8, 8)).astype("float32")
        return torch.from_numpy(self.images[index] + noise), torch.tensor([self.targets[index]])


def seed_worker(worker_id):
    np.random.seed(42)  # <- here


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Noisy(128), batch_size=16, shuffle=True, num_workers=2, worker_init_fn=seed_worker
    )  # <- here
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for images, targets in loader:
            loss = nn.functional.mse_loss(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
