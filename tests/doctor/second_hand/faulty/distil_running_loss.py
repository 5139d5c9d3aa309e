"""Distillation whose epoch's loss is summed as tensors: each adds its graph to the last one's."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def kd_loss(student_logits, teacher_logits, labels, T=3.0, alpha=0.5):
    soft = F.kl_div(
        F.log_softmax(student_logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
    )
    return alpha * T * T * soft + (1 - alpha) * F.cross_entropy(student_logits, labels)


def distil(teacher, student, loader, epochs=3):
    teacher.eval()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for epoch in range(epochs):
        student.train()
        epoch_loss = 0
        for x, y in loader:
            with torch.no_grad():
                teacher_logits = teacher(x)
            loss = kd_loss(student(x), teacher_logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss  # <- here
        print(f"epoch {epoch}: {epoch_loss.item() / len(loader):.4f}")


if __name__ == "__main__":
    torch.manual_seed(8)
    x = torch.randn(512, 20)
    y = (x[:, :5].sum(1) > 0).long() + (x[:, 5:9].sum(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    distil(mlp(20, 64, 64, 3), mlp(20, 24, 3), loader)
