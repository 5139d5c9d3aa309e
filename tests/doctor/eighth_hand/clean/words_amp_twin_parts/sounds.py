import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


class SpecAugment:
    """Masks bands and times, and adds noise, by a generator of its own."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __call__(self, spec):
        spec = spec + 0.4 * self.rng.normal(size=spec.shape)
        band, time = self.rng.integers(0, spec.shape[0] - 2), self.rng.integers(0, spec.shape[1] - 6)
        spec[band : band + 2] = 0
        spec[:, time : time + 6] = 0
        return spec


def worker_init_fn(worker_id):
    info = get_worker_info()
    info.dataset.augment.rng = np.random.default_rng(info.seed)


class WordDataset(Dataset):
    def __init__(self, count, seed, training):
        rng = np.random.default_rng(seed)
        templates = np.random.default_rng(50).normal(size=(6, 16, 12))
        self.labels = rng.integers(0, 6, count)
        self.specs = 0.9 * rng.normal(size=(count, 16, 32))
        for spec, label in zip(self.specs, self.labels):
            start = rng.integers(0, 20)
            spec[:, start : start + 12] += 0.8 * templates[label]
        self.augment = SpecAugment() if training else None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        spec = self.specs[index]
        if self.augment is not None:
            spec = self.augment(spec)
        return torch.as_tensor(spec, dtype=torch.float32), int(self.labels[index])
