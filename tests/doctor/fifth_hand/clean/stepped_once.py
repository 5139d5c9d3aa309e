"""Conversion of voices: a generator and a critic, each stepped once."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
source = torch.randn(256, 1, 64)
target = torch.tanh(nn.functional.avg_pool1d(source, 3, 1, 1))
loader = DataLoader(TensorDataset(source, target), batch_size=32, shuffle=True, drop_last=True)
generator = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.LeakyReLU(0.1), nn.Conv1d(16, 1, 5, padding=2))
critic = nn.Sequential(nn.Conv1d(1, 16, 5, 2), nn.LeakyReLU(0.1), nn.Conv1d(16, 1, 5, 2))
optim_g = torch.optim.AdamW(generator.parameters(), lr=2e-4, betas=(0.8, 0.99))
optim_d = torch.optim.AdamW(critic.parameters(), lr=2e-4, betas=(0.8, 0.99))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)


def of_critic(real, fake):
    return ((1 - real) ** 2).mean() + (fake**2).mean()


def of_generator(fake):
    return ((1 - fake) ** 2).mean()


for epoch in range(4):
    for wave, goal in loader:
        made = generator(wave)
        loss_d = of_critic(critic(goal), critic(made.detach()))
        optim_d.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.unscale_(optim_d)
        scaler.step(optim_d)
        loss_g = of_generator(critic(made)) + 45 * nn.functional.l1_loss(made, goal)
        optim_g.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.unscale_(optim_g)
        scaler.step(optim_g)
        scaler.update()
    print(epoch, loss_d.item(), loss_g.item())
