"""A range test of the learning rate, and then the training, which goes on with the weights that the test has ruined."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RangeTest:
    def __init__(self, model, criterion, low=1e-6, high=10.0, steps=40):
        self.model, self.criterion, self.low, self.high, self.steps = model, criterion, low, high, steps

    def run(self, loader):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.low)
        factor = (self.high / self.low) ** (1 / self.steps)
        rates, losses = [], []
        stream = iter(loader)
        for _ in range(self.steps):
            try:
                x, y = next(stream)
            except StopIteration:
                stream = iter(loader)
                x, y = next(stream)
            loss = self.criterion(self.model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
            losses.append(loss.item())
            optimizer.param_groups[0]["lr"] *= factor
            if losses[-1] > 8 * min(losses):
                break
        return rates[losses.index(min(losses))] / 10


torch.manual_seed(4)
x = torch.randn(320, 14)
y = (x @ torch.randn(14, 5)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(14, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
criterion = nn.CrossEntropyLoss()
lr = RangeTest(model, criterion).run(loader)
print("suggested", lr)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)  # <- here
for epoch in range(2):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
