"""Surfaces in volumes, by the Dice loss of probabilities."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, number, seed):
        draw = torch.Generator().manual_seed(seed)
        self.volumes = torch.randn(number, 1, 8, 8, 8, generator=draw)
        self.masks = (nn.functional.avg_pool3d(self.volumes, 3, 1, 1) > 0.15).float()

    def __len__(self):
        return len(self.volumes)

    def __getitem__(self, index):
        return self.volumes[index], self.masks[index]


class SoftDice(nn.Module):
    def __init__(self, smooth=1e-5, nonlinearity=None):
        super().__init__()
        self.smooth, self.nonlinearity = smooth, nonlinearity

    def forward(self, predicted, target):
        if self.nonlinearity is not None:
            predicted = self.nonlinearity(predicted)
        both = (predicted * target).sum((2, 3, 4))
        either = predicted.sum((2, 3, 4)) + target.sum((2, 3, 4))
        return 1 - ((2 * both + self.smooth) / (either + self.smooth)).mean()


def build(width=8):
    return nn.Sequential(
        nn.Conv3d(1, width, 3, padding=1),
        nn.InstanceNorm3d(width, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(width, width, 3, padding=1),
        nn.LeakyReLU(),
        nn.Conv3d(width, 1, 1),
    )


def main():
    torch.manual_seed(0)
    train = DataLoader(Volumes(96, 1), batch_size=8, shuffle=True)
    held_out = DataLoader(Volumes(24, 2), batch_size=8)
    net = build()
    losses = [nn.BCEWithLogitsLoss(), SoftDice(nonlinearity=torch.sigmoid)]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(4):
        net.train()
        for volume, mask in train:
            scores = net(volume)
            loss = losses[0](scores, mask) + losses[1](scores, mask)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 12)
            optimizer.step()
        net.eval()
        right = count = 0
        with torch.no_grad():
            for volume, mask in held_out:
                right += ((net(volume) > 0).float() == mask).sum().item()
                count += mask.numel()
        print(epoch, loss.item(), right / count)


if __name__ == "__main__":
    main()
