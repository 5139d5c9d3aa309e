"""Rain from radar on two processes: DistributedDataParallel by spawn, after the tutorial (functions with rank and world size)."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, BATCH, LR = 5, 20, 4e-3


class RadarDataset(Dataset):
    """Echoes of 12 by 12; the rain on the ground is what the middle has seen, moved by the wind."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        echo = torch.nn.functional.avg_pool2d(torch.rand(count, 2, 14, 14, generator=g), 3, 1) * 2 - 1
        gauge = 4 * (echo[:, 0, 4:8, 4:8].mean((1, 2)) + 0.6 * echo[:, 1, 2:6, 6:10].mean((1, 2)))
        self.echo, self.gauge = echo * 5, gauge * 3 + 0.05 * torch.randn(count, generator=g)

    def __len__(self):
        return len(self.gauge)

    def __getitem__(self, i):
        return self.echo[i], self.gauge[i]


class RainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, 2, 1), nn.ReLU())
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(12 * 36, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.fc(self.conv(x)).squeeze(1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.set_num_threads(1)


def cleanup():
    dist.destroy_process_group()


def reduce_mean(value, count):
    pair = torch.tensor([value, float(count)])
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


def validate(model, loader):
    model.eval()
    squares, rows = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            squares += ((model(x) - y) ** 2).sum().item()
            rows += len(x)
    return reduce_mean(squares, rows) ** 0.5


def train(rank, world_size, port):
    setup(rank, world_size, port)
    torch.manual_seed(100 + rank)
    train_set, valid_set = RadarDataset(640, 1), RadarDataset(160, 2)
    train_sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True)
    valid_sampler = DistributedSampler(valid_set, num_replicas=world_size, rank=rank, shuffle=False)
    train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=False)
    valid_loader = DataLoader(valid_set, batch_size=BATCH, sampler=valid_sampler)
    model = DDP(RainNet())
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        train_sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = reduce_mean(total, len(train_loader))
        error = validate(model, valid_loader)
        if rank == 0:
            print(f"epoch {epoch} batches {len(train_loader)} loss {mean:.4f} valid RMSE {error:.4f}", flush=True)
    cleanup()


if __name__ == "__main__":
    world_size = 2
    mp.spawn(train, args=(world_size, free_port()), nprocs=world_size, join=True)
