"""Distillation of logits and features: the teacher is frozen and in evaluation mode, a projection is trained with the student."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(18, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU()
        )
        self.classifier = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.features(x)
        return self.classifier(hidden), hidden


class Distiller:
    def __init__(self, teacher, student, temperature=4.0, alpha=0.7, beta=0.1):
        self.teacher, self.student = teacher.eval().requires_grad_(False), student
        self.project = nn.Linear(24, 96)
        self.T, self.alpha, self.beta = temperature, alpha, beta
        self.optimizer = torch.optim.Adam([*student.parameters(), *self.project.parameters()], lr=2e-3)

    def step(self, x, y):
        with torch.no_grad():
            t_logits, t_hidden = self.teacher(x)
        s_logits, s_hidden = self.student(x)
        soft = F.kl_div(
            F.log_softmax(s_logits / self.T, -1),
            F.log_softmax(t_logits / self.T, -1),
            log_target=True,
            reduction="batchmean",
        )
        loss = (
            self.alpha * self.T**2 * soft
            + (1 - self.alpha) * F.cross_entropy(s_logits, y)
            + self.beta * F.mse_loss(self.project(s_hidden), t_hidden)
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(2)
x = torch.randn(448, 18)
y = x[:, :4].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
teacher = Tower(96)
pretrain = torch.optim.Adam(teacher.parameters(), lr=2e-3)
for _ in range(2):
    for xb, yb in loader:
        pretrain.zero_grad()
        F.cross_entropy(teacher(xb)[0], yb).backward()
        pretrain.step()
distiller = Distiller(teacher, Tower(24))
for epoch in range(2):
    distiller.student.train()
    print(epoch, [round(distiller.step(xb, yb), 3) for xb, yb in loader][-1])
