"""Trees in clouds of points, each mean by its own length."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, cloud):
        x = self.each(cloud)
        everywhere = x.max(1, keepdim=True).values.expand_as(x)
        return self.head(torch.cat([x, everywhere], -1)).transpose(1, 2)


def clouds(number, seed):
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(number, 40, 3, generator=draw)
    height = points[..., 2]
    return TensorDataset(points, (height > -0.6).long() + (height > 0).long() + (height > 0.6).long())


torch.manual_seed(0)
train_loader = DataLoader(clouds(256, 1), batch_size=16, shuffle=True)
validation_loader = DataLoader(clouds(64, 2), batch_size=16)
model = Points()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
history = []
for epoch in range(4):
    model.train()
    running_loss = running_right = 0.0
    for points, labels in train_loader:
        optimizer.zero_grad()
        scores = model(points)
        loss = criterion(scores, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        running_right += (scores.argmax(1) == labels).float().mean().item()
    row = [running_loss / len(train_loader), running_right / len(train_loader)]
    model.eval()
    running_loss = running_right = 0.0
    with torch.no_grad():
        for points, labels in validation_loader:
            scores = model(points)
            running_loss += criterion(scores, labels).item()
            running_right += (scores.argmax(1) == labels).float().mean().item()
    row += [running_loss / len(validation_loader), running_right / len(validation_loader)]
    history.append(row)
    print(epoch, *row)
