"""Semi-supervised: a teacher that averages the student, both in training mode; the student is saved for resuming."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
teacher = copy.deepcopy(student).requires_grad_(False)
labelled = DataLoader(TensorDataset(torch.randn(48, 6), torch.arange(48) % 3), batch_size=16, shuffle=True)
unlabelled = DataLoader(torch.randn(96, 6), batch_size=32, shuffle=True)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for _epoch in range(3):
    student.train()
    teacher.train()
    for (x, y), u in zip(labelled, unlabelled, strict=True):
        with torch.no_grad():
            target = F.softmax(teacher(u + 0.1 * torch.randn_like(u)), dim=1)
        consistency = F.mse_loss(F.softmax(student(u + 0.1 * torch.randn_like(u)), dim=1), target)
        loss = F.cross_entropy(student(x), y) + 0.5 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.mul_(0.99).add_(s, alpha=0.01)
    torch.save({"student": student.state_dict(), "teacher": teacher.state_dict()}, "last.pt")
