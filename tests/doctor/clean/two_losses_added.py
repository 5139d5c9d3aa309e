"""A classifier with a second head, whose loss is added to that of the first."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
x = torch.randn(700, 12, generator=g)
y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
train_set, val_set = random_split(TensorDataset(x, y), [512, 188], generator=g)
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
val_loader = DataLoader(val_set, batch_size=47)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.aux = nn.Linear(64, 3)
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.1)

    def forward(self, x):
        h = self.drop(torch.relu(self.norm(self.a(x))))
        h2 = torch.relu(self.b(h))
        return self.c(h2), self.aux(h)


model = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
best = 0
for epoch in range(6):
    model.train()
    running = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        out, aux = model(xb)
        loss = criterion(out, yb)
        aux_loss = criterion(aux, yb)
        total = loss + 0.3 * aux_loss
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += total.item()
    scheduler.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for xb, yb in val_loader:
            out, _ = model(xb)
            correct += (out.argmax(1) == yb).sum().item()
    print(epoch, running / len(train_loader), correct / len(val_set))
    if correct > best:
        best = correct
        torch.save(model.state_dict(), os.devnull)
