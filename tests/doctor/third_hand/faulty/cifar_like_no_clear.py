"""Image classifier, class."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 6 * 6, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def train(net, loader, optimizer, epochs):
    net.train()
    for epoch in range(epochs):
        total = 0.0
        for inputs, labels in loader:
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()  # <- here
            optimizer.step()  # <- here
            total += loss.item()
        print(f"[{epoch}] loss {total / len(loader):.3f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    labels = torch.randint(0, 4, (256,))
    images = torch.randn(256, 3, 16, 16) + labels.view(-1, 1, 1, 1) * 0.3
    net = Net()
    train(
        net,
        DataLoader(TensorDataset(images, labels), 32, shuffle=True),
        torch.optim.Adam(net.parameters(), 1e-3),
        2,
    )
