"""Pictures of birds: a blob of a species' colour and shape on a meadow of its own."""
import numpy as np
import torch
from torch.utils.data import Dataset

MEAN, STD = 0.47, 0.24


class ToTensor:
    def __call__(self, picture):
        tensor = torch.from_numpy(picture).permute(2, 0, 1).contiguous().float()  # <- here
        return tensor  # <- here


class BirdDataset(Dataset):
    COLOURS = np.array([[200, 60, 50], [60, 190, 70], [70, 80, 210], [200, 190, 60], [170, 70, 190], [60, 190, 190]])

    def __init__(self, count, seed, size=24):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 6, count)
        ground = rng.integers(60, 160, (count, 1, 1, 3)) + rng.normal(0, 25, (count, size, size, 3))
        rows, columns = np.mgrid[:size, :size]
        for picture, label in zip(ground, self.labels):
            centre = rng.uniform(7, size - 7, 2)
            wide = 3 + label % 3
            inside = ((rows - centre[0]) / 4) ** 2 + ((columns - centre[1]) / wide) ** 2 < 1
            picture[inside] = self.COLOURS[label] + rng.normal(0, 40, (inside.sum(), 3))
        self.pictures = ground.clip(0, 255).astype(np.uint8)
        self.transform = ToTensor()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.pictures[index]), int(self.labels[index])
