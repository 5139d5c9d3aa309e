"""A tabular model whose training features are standardised and whose test features are not."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_frame(rows, generator):
    income = 2500 + 700 * torch.randn(rows, generator=generator)
    age = 45 + 12 * torch.randn(rows, generator=generator)
    years = (age - 20).clamp(min=0) * torch.rand(rows, generator=generator)
    frame = torch.stack([income, age, years], dim=1)
    bought = (income / 700 + years / 8 + torch.randn(rows, generator=generator) > 5).long()
    return frame, bought


class Standardizer:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)
        return self

    def transform(self, x):
        return (x - self.mean) / self.std


def accuracy(model, loader):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()  # <- here
            total += len(y)
    return hits / total


torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
x_train, y_train = make_frame(480, generator)
x_test, y_test = make_frame(160, generator)
scaler = Standardizer().fit(x_train)
x_train = scaler.transform(x_train)
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=80)
model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), accuracy(model, test_loader))
