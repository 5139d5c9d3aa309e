"""Knowledge distillation: a frozen teacher without a graph, temperature, two losses."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
student = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
loader = DataLoader(TensorDataset(torch.randn(48, 8), torch.arange(48) % 4), batch_size=12, shuffle=True)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
ce_loss, T = nn.CrossEntropyLoss(), 2.0
teacher.eval()
student.train()
for _epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        student_logits = student(inputs)
        soft_targets = F.softmax(teacher_logits / T, dim=-1)
        soft_prob = F.log_softmax(student_logits / T, dim=-1)
        distil = F.kl_div(soft_prob, soft_targets, reduction="batchmean") * T**2
        loss = 0.25 * distil + 0.75 * ce_loss(student_logits, labels)
        loss.backward()
        optimizer.step()
