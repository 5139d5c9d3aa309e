"""Mean teacher whose batch norms see its own rows; the average is put back after it was sampled."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
label = torch.randint(0, 4, (320,))
leaf = torch.randn(320, 3, 8, 8) + 0.5 * label[:, None, None, None]
student = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
)
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    student.train()
    teacher.train()
    for rows in torch.randperm(256).split(32):
        x = leaf[rows]
        with torch.no_grad():
            wanted = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        scores = student(x)
        loss = nn.functional.cross_entropy(scores, label[rows]) + (scores.softmax(1) - wanted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=False):
                t.lerp_(s, 0.1)
    teacher.eval()
    with torch.no_grad():
        print(epoch, (teacher(leaf[256:]).argmax(1) == label[256:]).float().mean().item())
torch.save(teacher.state_dict(), "teacher.pt")
