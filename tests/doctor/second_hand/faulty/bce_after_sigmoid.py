"""A multi-label classifier that ends in a sigmoid and is trained with the loss that applies one."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class MultiLabel(nn.Module):
    def __init__(self, d_in, n_labels):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d_in, 40), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(40, 1) for _ in range(n_labels)])
        self.act = nn.Sigmoid()

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([self.act(head(h)) for head in self.heads], dim=1)


def main(epochs: int = 2) -> None:
    torch.manual_seed(0)
    x = torch.randn(320, 15)
    y = (x @ torch.randn(15, 6) > 0).float()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = MultiLabel(15, 6)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for xb, yb in loader:
            loss = criterion(model(xb), yb)  # <- here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
