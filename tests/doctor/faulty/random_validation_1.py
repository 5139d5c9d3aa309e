"""Pictures are flipped and cut at random for the validation as for the training."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Pictures(Dataset):
    def __init__(self, count):
        self.labels = torch.arange(count) % 3
        self.pictures = torch.randn(count, 1, 10, 10) + self.labels.view(-1, 1, 1, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        top, left = torch.randint(0, 3, (2,)).tolist()
        picture = self.pictures[row][:, top : top + 8, left : left + 8]
        return {"picture": picture * (0.9 + 0.2 * torch.rand(())), "label": self.labels[row]}


train = DataLoader(Pictures(60), batch_size=12, shuffle=True)
valid = DataLoader(Pictures(24), batch_size=12)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    for batch in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["picture"]), batch["label"]).backward()
        optimizer.step()
    with torch.no_grad():
        for batch in valid:
            print(nn.functional.cross_entropy(model(batch["picture"]), batch["label"]).item())  # <- here
