"""Image classifier, class."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.fc1 = nn.Linear(8 * 49, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, p=0.5)  # <- here
        return self.fc2(x)


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for data, target in loader:
            right += model(data).argmax(1).eq(target).sum().item()
    return right / len(loader.dataset)


torch.manual_seed(0)
target = torch.randint(0, 3, (288,))
data = torch.randn(288, 1, 16, 16) + target.view(-1, 1, 1, 1) * 0.3
model = ConvNet()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
train = DataLoader(TensorDataset(data[:224], target[:224]), 32, shuffle=True)
test = DataLoader(TensorDataset(data[224:], target[224:]), 64)
for epoch in range(2):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(epoch, evaluate(model, test))
