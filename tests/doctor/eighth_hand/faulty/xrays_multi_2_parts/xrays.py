import numpy as np
import torch
from torch.utils.data import Dataset


class XrayDataset(Dataset):
    """Grey pictures of 24 x 24 with up to three findings."""

    def __init__(self, count, transform, seed=13):
        rng = np.random.default_rng(seed)
        self.transform = transform
        self.labels = (rng.random((count, 3)) < 0.33).astype(np.float32)
        self.images = np.zeros((count, 24, 24), dtype=np.uint8)
        for image, label in zip(self.images, self.labels):
            canvas = 110 + 30 * rng.normal(size=(24, 24))
            if label[0]:
                r, c = rng.integers(3, 18, 2)
                canvas[r : r + 3, c : c + 3] += 110
            if label[1]:
                canvas[rng.integers(17, 20) :] += 75
            if label[2]:
                r, c = rng.integers(2, 12, 2)
                canvas[r : r + 8, c : c + 8] -= 65
            image[:] = canvas.clip(0, 255)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), torch.from_numpy(self.labels[index])
