"""Depth and motion from pairs of frames."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--scheduler", choices=["none", "step"], default="step")
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args([])


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ELU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, frame):
        return self.net(frame).sigmoid() * 10 + 0.01


class Motion(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 2))

    def forward(self, pair):
        return 0.1 * self.net(pair)


def warp(frame, depth, motion):
    n, _, height, width = frame.shape
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    grid = torch.stack([columns, rows], -1).expand(n, height, width, 2)
    moved = grid + motion[:, None, None, :] / depth.permute(0, 2, 3, 1)
    return nn.functional.grid_sample(frame, moved, align_corners=True)


torch.manual_seed(0)
frames = nn.functional.avg_pool2d(torch.randn(192, 1, 16, 16), 3, 1, 1)
later = frames.roll(1, -1)
loader = DataLoader(TensorDataset(frames, later), batch_size=16, shuffle=True)
depth_net, motion_net = Depth(), Motion()
optimizer = torch.optim.Adam([*depth_net.parameters(), *motion_net.parameters()], lr=args.lr)
scheduler = None
if args.scheduler == "step":
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
for epoch in range(args.epochs):
    depth_net.train()
    motion_net.train()
    total = 0.0
    for now, then in loader:
        again = warp(then, depth_net(now), motion_net(torch.cat([now, then], 1)))
        loss = (again - now).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        if scheduler:
            scheduler.step()  # <- here
        else:
            optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
