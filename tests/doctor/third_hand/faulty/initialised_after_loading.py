"""Fine-tuning from a checkpoint."""

from __future__ import annotations

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def init_weights(self):
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)  # <- here
                nn.init.zeros_(module.bias)


def fit(model, rows, labels, epochs, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(rows, labels), 32, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


torch.manual_seed(0)
rows = torch.randn(512, 16)
labels = (rows[:, :3]).argmax(1)
folder = tempfile.mkdtemp()
first = Encoder()
print("pretraining", fit(first, rows, labels, 4, 3e-3))
torch.save(first.state_dict(), os.path.join(folder, "pretrained.pt"))

model = Encoder()
model.load_state_dict(torch.load(os.path.join(folder, "pretrained.pt")))  # <- here
model.init_weights()  # <- here
print("fine-tuning", fit(model, rows[:128], labels[:128], 2, 1e-3))
