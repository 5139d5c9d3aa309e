"""A graph network of molecules above an encoder that stays as it is."""

from __future__ import annotations

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.others, self.norm = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
        )

    def forward(self, x, bonds):
        y = self.own(x) + bonds @ self.others(x)
        return torch.relu(self.norm(y.flatten(0, 1)).view_as(y))


class Molecules(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, atoms, bonds):
        x = self.embed(atoms)
        for layer in self.layers:
            x = layer(x, bonds)
        return self.head(x.mean(1)).squeeze(-1)

    def train(self, mode=True):
        super().train(mode)
        if mode and not self.embed.weight.requires_grad:
            self.layers.eval()
        return self

    def freeze_encoder(self):
        for part in (self.embed, *self.layers):
            for parameter in part.parameters():
                parameter.requires_grad = False
            for module in part.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()


def molecules(number, shift):
    atoms = torch.randn(number, 9, 6) + shift
    bonds = (torch.rand(number, 9, 9) < 0.3).float()
    bonds = ((bonds + bonds.transpose(1, 2)) > 0).float() / 4
    return atoms, bonds, atoms[..., 0].mean(1) - shift


def epoch_of(model, optimizer, data, size=32):
    atoms, bonds, property_ = data
    model.train()
    for rows in torch.randperm(len(atoms)).split(size):
        loss = nn.functional.mse_loss(model(atoms[rows], bonds[rows]), property_[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
model = Molecules()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
source = molecules(256, 0.0)
for _ in range(3):
    epoch_of(model, optimizer, source)
model.freeze_encoder()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
target, held_out = molecules(160, 2.0), molecules(64, 2.0)
for epoch in range(5):
    loss = epoch_of(model, optimizer, target)
    model.eval()
    with torch.no_grad():
        error = (model(*held_out[:2]) - held_out[2]).abs().mean().item()
    print(epoch, loss, error)
