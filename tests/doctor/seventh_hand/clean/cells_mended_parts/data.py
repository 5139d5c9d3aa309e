"""Drawn micrographs: bright discs on a dark, noisy ground."""
import random

import numpy as np
import torch
from torch.utils.data import Dataset


class RandomFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image, mask):
        if random.random() < self.p:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


class RandomBrightness:
    def __init__(self, amount=0.15):
        self.amount = amount

    def __call__(self, image, mask):
        return image + random.uniform(-self.amount, self.amount), mask


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image, mask):
        for transform in self.transforms:
            image, mask = transform(image, mask)
        return image, mask


class CellDataset(Dataset):
    """Pictures of 32 x 32 with one to three cells each, drawn anew from the seed."""

    def __init__(self, count, seed, transform=None, size=32):
        rng = np.random.RandomState(seed)
        grid = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
        self.images, self.masks = [], []
        for _ in range(count):
            mask = np.zeros((size, size), dtype=bool)
            for _ in range(rng.randint(1, 4)):
                centre, radius = rng.uniform(6, size - 6, (2, 1, 1)), rng.uniform(3, 7)
                mask |= ((grid - centre) ** 2).sum(0) < radius**2
            image = 0.8 * mask - 0.4 + rng.normal(0, 0.35, mask.shape)
            self.images.append(torch.tensor(image, dtype=torch.float32)[None])
            self.masks.append(torch.tensor(mask, dtype=torch.float32)[None])
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if self.transform is not None:
            image, mask = self.transform(image, mask)
        return image, mask
