"""Sequence classifier, LSTM."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 24)  # <- here
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        hidden, _ = self.lstm(x)  # <- here
        return self.head(hidden[:, -1])


torch.manual_seed(0)
labels = torch.randint(0, 3, (330,))
series = torch.randn(330, 14, 5) + labels.view(-1, 1, 1) * 0.5
loader = DataLoader(TensorDataset(series, labels), batch_size=32, shuffle=True)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
