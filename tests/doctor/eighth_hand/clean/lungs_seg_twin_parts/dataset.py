import numpy as np
import torch
from torch.utils.data import Dataset


def draw(rng, size):
    """A picture with two ellipses, and its mask as an image of 8 bits."""
    rows, cols = np.mgrid[:size, :size]
    mask = np.zeros((size, size), dtype=np.uint8)
    for side in (0.3, 0.7):
        y, x = size * (0.5 + 0.1 * rng.normal()), size * (side + 0.04 * rng.normal())
        a, b = size * rng.uniform(0.2, 0.3), size * rng.uniform(0.1, 0.15)
        mask[((rows - y) / a) ** 2 + ((cols - x) / b) ** 2 < 1] = 255
    image = 120 + 60 * (mask > 0) + 35 * rng.normal(size=(size, size))
    return image.clip(0, 255).astype(np.uint8), mask


class LungDataset(Dataset):
    def __init__(self, count, size=32):
        rng = np.random.default_rng(8)
        self.items = [draw(rng, size) for _ in range(count)]

    @staticmethod
    def preprocess(array, is_mask):
        array = torch.from_numpy(array.astype(np.float32))[None]
        if is_mask:
            return array / 255
        return array / 127.5 - 1

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        image, mask = self.items[idx]
        return self.preprocess(image, is_mask=False), self.preprocess(mask, is_mask=True)
