"""A fine-tuning that loads a checkpoint of a wrapped model, not strictly: every name begins with "module."."""

from __future__ import annotations

import io

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


def pretrained_checkpoint():
    buffer = io.BytesIO()
    torch.save({f"module.{name}": value for name, value in Backbone().state_dict().items()}, buffer)
    buffer.seek(0)
    return buffer


def main():
    torch.manual_seed(5)
    model = Backbone()
    state = torch.load(pretrained_checkpoint(), weights_only=True)
    model.load_state_dict(state, strict=False)  # <- here
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _step in range(20):
        target = torch.randint(0, 3, (24,))
        image = torch.randn(24, 1, 10, 10) * (1 + target.view(-1, 1, 1, 1))
        loss = nn.functional.cross_entropy(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
