"""Behaviour of animals: a recurrent autoencoder of their poses."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"epochs": 8, "rate": 5e-3, "batch": 32, "scheduler": False, "scheduler_step": 3, "hidden": 24}


class Behaviour(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.encoder = nn.GRU(features, hidden, batch_first=True)
        self.mean, self.log_variance = nn.Linear(hidden, 4), nn.Linear(hidden, 4)
        self.start = nn.Linear(4, hidden)
        self.decoder = nn.GRU(4, hidden, batch_first=True)
        self.out = nn.Linear(hidden, features)

    def forward(self, x):
        h = self.encoder(x)[1][0]
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        again = self.decoder(z[:, None].expand(-1, x.shape[1], -1), self.start(z)[None])[0]
        return self.out(again), mean, log_variance


def train(config):
    torch.manual_seed(0)
    clock = torch.arange(15) / 3
    poses = torch.sin(clock[None, :, None] * (1 + torch.rand(320, 1, 6)) + torch.rand(320, 1, 6))
    loader = DataLoader(TensorDataset(poses), batch_size=config["batch"], shuffle=True)
    model = Behaviour(6, config["hidden"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["rate"], amsgrad=True)
    if config["scheduler"]:
        scheduler = StepLR(optimizer, step_size=config["scheduler_step"], gamma=0.2)
    else:
        scheduler = StepLR(optimizer, step_size=config["scheduler_step"], gamma=0)  # <- here
    for epoch in range(config["epochs"]):
        model.train()
        for (x,) in loader:
            again, mean, log_variance = model(x)
            divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
            loss = nn.functional.mse_loss(again, x, reduction="sum") / len(x) + 0.1 * divergence
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5)
            optimizer.step()
        scheduler.step()  # <- here
        print(epoch, loss.item())


if __name__ == "__main__":
    train(CONFIG)
