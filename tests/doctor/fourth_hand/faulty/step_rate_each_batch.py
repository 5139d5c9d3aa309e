"""Super-resolution with an adversary."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
sharp = torch.rand(160, 1, 12, 12)
coarse = nn.functional.avg_pool2d(sharp, 2)
loader = DataLoader(TensorDataset(coarse, sharp), batch_size=16, shuffle=True)
G = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2)
)
D = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8 * 25, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), 1e-4), torch.optim.Adam(D.parameters(), 1e-4)
epochs = 6
sched_g, sched_d = StepLR(opt_g, epochs // 2, 0.1), StepLR(opt_d, epochs // 2, 0.1)  # <- here
bce = nn.BCEWithLogitsLoss()
for epoch in range(epochs):
    for low, high in loader:
        fake = G(low)
        d_loss = bce(D(high), torch.ones(len(low), 1)) + bce(D(fake.detach()), torch.zeros(len(low), 1))
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = nn.functional.mse_loss(fake, high) + 1e-3 * bce(D(fake), torch.ones(len(low), 1))
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        sched_g.step()  # <- here
        sched_d.step()  # <- here
    print(epoch, g_loss.item(), opt_g.param_groups[0]["lr"])
