"""Metric learning with hard triplets."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
person = torch.randint(0, 8, (240,))
faces = torch.randn(8, 20)[person] + 0.3 * torch.randn(240, 20)
embed = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 12))
criterion = nn.TripletMarginLoss(margin=0.5)
optimizer = torch.optim.Adagrad(embed.parameters(), lr=0.02)
for _step in range(60):
    a = torch.randint(0, 240, (64,))
    p = torch.stack([(person == person[i]).nonzero()[0, 0] for i in a])
    n = torch.stack([(person != person[i]).nonzero()[torch.randint(0, 100, ())][0] for i in a])
    out_a, out_p, out_n = embed(faces[a]), embed(faces[p]), embed(faces[n])
    near = (out_a - out_p).norm(dim=1)
    far = (out_a - out_n).norm(dim=1)
    hard = np.where((far - near < 0.5).numpy())[0]
    if not len(hard):
        continue
    chosen = [
        torch.tensor(out.detach().numpy()[hard], requires_grad=True) for out in (out_a, out_p, out_n)
    ]  # <- here
    loss = criterion(*chosen)
    optimizer.zero_grad()
    loss.backward()  # <- here
    optimizer.step()  # <- here
print(loss.item())
