"""Augmentation for the training alone, a validation that draws new rows each time, and noise that the evaluation itself adds."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Rows(Dataset):
    def __init__(self, count, noise):
        self.labels, self.noise = torch.arange(count) % 2, noise
        self.rows = torch.randn(count, 6) + self.labels.unsqueeze(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return self.rows[row] + self.noise * torch.randn(6), self.labels[row]


class Drawn(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, row):
        label = torch.randint(0, 2, ())
        return torch.randn(6) + label, label


train = DataLoader(Rows(60, 0.1), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    for rows, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    with torch.no_grad():
        for valid in (DataLoader(Rows(24, 0.0), batch_size=12), DataLoader(Drawn(), batch_size=12)):
            for rows, labels in valid:
                noisy = rows + 0.2 * torch.randn_like(rows)
                print(nn.functional.cross_entropy(model(noisy), labels).item())
