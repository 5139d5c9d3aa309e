"""Clips: twelve bands over forty frames, one of four sounds in noise."""
import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


class SpecAugment:
    """Masks a few bands and a few frames, drawn anew for each clip."""

    def __init__(self, seed, bands=3, frames=8):
        self.seed, self.bands, self.frames = seed, bands, frames
        self.rng = None

    def __call__(self, mel):
        if self.rng is None:
            worker = get_worker_info()
            self.rng = np.random.RandomState((worker.seed if worker else self.seed) % 2**32)
        mel = mel.copy()
        low, start = self.rng.randint(0, len(mel) - self.bands), self.rng.randint(0, mel.shape[1] - self.frames)
        mel[low : low + self.rng.randint(1, self.bands + 1)] = 0
        mel[:, start : start + self.rng.randint(1, self.frames + 1)] = 0
        return mel


class Clips(Dataset):
    def __init__(self, count, seed, transform=None):
        rng = np.random.RandomState(seed)
        self.labels = rng.randint(0, 4, count)
        self.mels = rng.normal(0, 1, (count, 12, 40)).astype(np.float32)
        for mel, label in zip(self.mels, self.labels):
            start = rng.randint(0, 25)
            for step in range(12):
                mel[[3, 8, 2 + step // 2, 9 - step // 2][label], start + step] += 2.5
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        mel = self.mels[index]
        if self.transform is not None:
            mel = self.transform(mel)
        return torch.from_numpy(mel), int(self.labels[index])
