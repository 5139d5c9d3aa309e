"""Fine-tuning from a checkpoint, class."""

from __future__ import annotations

import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.outc = nn.Linear(16, 2)

    def forward(self, x):
        return self.outc(torch.relu(self.encoder(x)))


class Adapter:
    def __init__(self, weights):
        self.model = Model()
        self.model.load_state_dict(torch.load(weights))
        self.model.outc.requires_grad = False  # <- here
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            print(epoch, loss.item())


torch.manual_seed(0)
stored = io.BytesIO()
torch.save(Model().state_dict(), stored)
stored.seek(0)
x = torch.randn(256, 12)
y = (x[:, 0] > 0).long()
Adapter(stored).fit(DataLoader(TensorDataset(x, y), 32, shuffle=True), 2)
