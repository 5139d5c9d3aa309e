"""A run that is interrupted and resumed: the checkpoint has the optimizer's state, and only the weights are loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(2)
FOLDER = Path(tempfile.mkdtemp())
X = torch.randn(256, 10)
Y = (X[:, :4].sum(1) > 0).long()


def build():
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 2))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(model, optimizer, first_epoch, last_epoch):
    for epoch in range(first_epoch, last_epoch):
        for idx in torch.randperm(256).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(X[idx]), Y[idx])
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", loss.item())
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            FOLDER / "checkpoint.pt",
        )


def resume():
    checkpoint = torch.load(FOLDER / "checkpoint.pt", weights_only=True)
    model, optimizer = build()
    model.load_state_dict(checkpoint["model"])  # <- here
    return model, optimizer, checkpoint["epoch"] + 1


model, optimizer = build()
train(model, optimizer, 0, 2)
model, optimizer, epoch = resume()
train(model, optimizer, epoch, 4)
