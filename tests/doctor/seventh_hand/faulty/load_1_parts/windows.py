"""Windows over a series, and what follows each."""
import math

import torch
from torch.utils.data import Dataset


def series(length):
    day = torch.arange(length).float()
    week, year = torch.sin(2 * math.pi * day / 7), torch.cos(2 * math.pi * day / 365)
    return 40 + 6 * week + 9 * year + 0.002 * day + 1.5 * torch.randn(length)


class Windows(Dataset):
    def __init__(self, values, length):
        self.values, self.length = values, length

    def __len__(self):
        return len(self.values) - self.length

    def __getitem__(self, index):
        return self.values[index : index + self.length].unsqueeze(-1), self.values[index + self.length]  # <- here
