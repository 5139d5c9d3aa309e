"""Caption writer whose warm-up moves twice."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pictures, words = torch.randn(320, 12), torch.randint(0, 15, (320, 6))
loader = DataLoader(TensorDataset(pictures, words), batch_size=32, shuffle=True)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.words = nn.Linear(12, 24), nn.Embedding(15, 24)
        self.cell, self.out = nn.GRU(24, 24, batch_first=True), nn.Linear(24, 15)

    def forward(self, picture, before):
        hidden = self.start(picture).tanh()[None]
        return self.out(self.cell(self.words(before), hidden)[0])


model = Writer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda s: min((s + 1) ** -0.5, (s + 1) * 10**-1.5) * 3)
for epoch in range(4):
    scheduler.step()  # <- here
    for picture, text in loader:
        scores = model(picture, text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()  # <- here
    print(epoch, loss.item(), scheduler.get_last_lr())
