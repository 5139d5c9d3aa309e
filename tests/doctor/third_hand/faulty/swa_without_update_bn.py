"""Image classifier, weight averaging."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.randint(0, 4, (384,))
images = 2 * torch.randn(384, 1, 10, 10) + labels.view(-1, 1, 1, 1)
images = (images - images.mean()) / images.std()
train = DataLoader(TensorDataset(images[:320], labels[:320]), 32, shuffle=True)
test = DataLoader(TensorDataset(images[320:], labels[320:]), 32)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 4),
)
swa = AveragedModel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
swa_schedule = SWALR(optimizer, swa_lr=0.02)
for epoch in range(4):
    net.train()
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    if epoch >= 1:
        swa.update_parameters(net)
        swa_schedule.step()
swa.eval()
correct = 0
with torch.no_grad():
    for x, y in test:
        correct += (swa(x).argmax(1) == y).sum().item()  # <- here
print("accuracy of the average", correct / 64)
torch.save(swa.module.state_dict(), "/dev/null")
