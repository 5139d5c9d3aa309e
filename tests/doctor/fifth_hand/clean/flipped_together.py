"""Roads in pictures from above, flipped with their masks."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomFlip:
    def __init__(self, axis):
        self.axis = axis

    def __call__(self, picture):
        return picture.flip(self.axis) if random.random() < 0.5 else picture


class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, picture):
        for step in self.steps:
            picture = step(picture)
        return picture


class Roads(Dataset):
    def __init__(self, pictures, masks, transform=None):
        self.pictures, self.masks, self.transform = pictures, masks, transform

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture, mask = self.pictures[index], self.masks[index]
        if self.transform:
            both = self.transform(torch.cat([picture, mask]))
            picture, mask = both[:3], both[3:]
        return picture, mask


torch.manual_seed(0)
random.seed(0)
pictures = torch.rand(240, 3, 16, 16) - 0.5
masks = (pictures.mean(1, keepdim=True) > 0).float()
flips = Compose(RandomFlip(-1), RandomFlip(-2))
train = DataLoader(Roads(pictures[:200], masks[:200], flips), 20, shuffle=True)
test = DataLoader(Roads(pictures[200:], masks[200:]), 20)
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
optimizer = torch.optim.Adam(net.parameters(), 2e-3)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(5):
    net.train()
    for picture, mask in train:
        optimizer.zero_grad()
        loss = criterion(net(picture), mask)
        loss.backward()
        optimizer.step()
    net.eval()
    overlap = union = 0
    with torch.no_grad():
        for picture, mask in test:
            found = net(picture) > 0
            overlap += (found & mask.bool()).sum().item()
            union += (found | mask.bool()).sum().item()
    print(epoch, loss.item(), overlap / union)
