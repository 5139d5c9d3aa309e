"""Several tasks on one trunk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.age = nn.Linear(32, 1)
        self.gender = nn.Linear(32, 2)

    def forward(self, x):
        hidden = self.shared(x)
        return self.age(hidden).squeeze(1), self.gender(hidden)


features = torch.randn(256, 12)
ages = features[:, 0] * 0.5
genders = (features[:, 1] > 0).long()
loader = DataLoader(TensorDataset(features, ages, genders), 32, shuffle=True)
net = Trunk()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(2):
    for x, age, gender in loader:
        age_hat, gender_hat = net(x)
        loss = F.mse_loss(age_hat, age)
        loss = F.cross_entropy(gender_hat, gender)  # <- here
        opt.zero_grad()
        loss.backward()  # <- here
        opt.step()  # <- here
    print(f"epoch {epoch}: {loss.item():.3f}")
