"""Semi-supervised teacher with batch norms."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
label = torch.randint(0, 4, (320,))
leaf = 2 * torch.randn(320, 3, 8, 8) + 1 + label[:, None, None, None]
student = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
)
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
for epoch in range(4):
    student.train()
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(student(leaf[rows]), label[rows]).backward()
        optimizer.step()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=False):  # <- here
                t.lerp_(s, 0.1)
    teacher.eval()
    with torch.no_grad():
        print(epoch, (teacher(leaf[256:]).argmax(1) == label[256:]).float().mean().item())  # <- here
torch.save(teacher.state_dict(), "teacher.pt")
