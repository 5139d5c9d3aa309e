"""Weather, and loaders of it for one process or several."""
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def weather(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    rain = x[:, 0] * x[:, 1] + x[:, 2] - 0.5 * x[:, 3] + 0.3 * torch.randn(count, generator=generator) > 0
    return TensorDataset(x, rain.long())


def build_loader(dataset, batch_size, distributed=False, shuffle=True):
    sampler = DistributedSampler(dataset, shuffle=shuffle, drop_last=True) if distributed else None
    return DataLoader(dataset, batch_size, shuffle=shuffle and sampler is None, sampler=sampler, drop_last=True)  # <- here
