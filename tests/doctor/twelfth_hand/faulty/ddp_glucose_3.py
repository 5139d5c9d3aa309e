"""Two CPU workers with gloo: predict the next glucose value of a patient from the last readings.

    python ddp_glucose.py            (spawns both workers itself)
"""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD_SIZE = 2
LOOKBACK = 12
ACCUM = 2
EPOCHS = 5


def find_free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def setup(rank, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)


def patients(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(LOOKBACK + 1).float()
    phase = 6.28 * torch.rand(n, 1, generator=g)
    speed = 0.3 + 0.3 * torch.rand(n, 1, generator=g)
    curve = torch.sin(speed * t + phase) + 0.05 * torch.randn(n, LOOKBACK + 1, generator=g)
    return TensorDataset(curve[:, :-1], curve[:, -1:])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LOOKBACK, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    sums = torch.zeros(2)
    for x, y in loader:
        sums[0] += ((model(x) - y) ** 2).sum()
        sums[1] += len(y)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def train_one_epoch(model, loader, optimizer, criterion):
    model.train()
    optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        last = (step + 1) % ACCUM == 0
        if not last:
            with model.no_sync():
                (criterion(model(x), y) / ACCUM).backward()
            continue
        loss = criterion(model(x), y) / ACCUM
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def worker(rank, port):
    setup(rank, port)
    torch.manual_seed(100 + rank)
    torch.set_num_threads(1)
    train_set, val_set = patients(1280, seed=1), patients(400, seed=2)
    sampler = DistributedSampler(train_set, num_replicas=WORLD_SIZE, rank=rank, shuffle=True)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=50, sampler=DistributedSampler(val_set, shuffle=False))

    model = DDP(Forecaster())
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train_one_epoch(model, train_loader, optimizer, criterion)
        mse = validate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch} val mse {mse:.4f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "glucose.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(find_free_port(),), nprocs=WORLD_SIZE)
