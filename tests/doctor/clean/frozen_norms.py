"""Fine-tuning with the batch norms frozen: the model in training mode, they in evaluation mode; one ReLU used twice."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + x)


model = nn.Sequential(nn.Conv2d(3, 8, 3), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
model.train()
for module in model.modules():
    if isinstance(module, nn.BatchNorm2d):
        module.eval()
        module.requires_grad_(False)
for _ in range(8):
    images, target = torch.randn(4, 3, 12, 12), torch.randint(0, 3, (4,))
    loss = criterion(model(images), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(model(torch.randn(16, 3, 12, 12)).argmax(1))
