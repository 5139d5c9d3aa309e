"""The accuracy is the mean of the batches' accuracies, and the last batch has three rows where others have 64."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(16, 40)
        self.l2 = nn.Linear(40, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.l2(self.drop(torch.relu(self.l1(x))))


def binary_step(model, batch):
    x, y = batch
    out = model(x)
    return nn.functional.cross_entropy(out, y), (out.argmax(1) == y).float().mean()


torch.manual_seed(20)
x = torch.randn(512 + 131, 16)
y = x[:, :4].argmax(1)
train_loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=64, shuffle=True)
val_loader = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=64)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    for batch in train_loader:
        loss, _ = binary_step(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    val_acc = 0.0
    with torch.no_grad():
        for batch in val_loader:
            _, acc = binary_step(model, batch)  # <- here
            val_acc += acc.item()  # <- here
    print(f"epoch {epoch}: val_acc {val_acc / len(val_loader):.3f}")  # <- here
