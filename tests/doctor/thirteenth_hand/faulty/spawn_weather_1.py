"""Tomorrow's temperature from today's stations: two ranks over gloo, started with mp.spawn."""

import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD = 2
EPOCHS = 5
BATCH = 32


def weather(n, seed):
    rng = np.random.default_rng(seed)
    season = rng.uniform(0, 2 * np.pi, n)
    pressure = rng.normal(0, 1, n)
    stations = 10 * np.sin(season)[:, None] + 2 * rng.normal(size=(n, 6)) + pressure[:, None]
    wind = rng.normal(0, 1, (n, 2))
    tomorrow = 0.7 * stations.mean(1) + 2.0 * np.tanh(pressure * wind[:, 0]) + 0.5 * rng.normal(size=n)
    x = np.concatenate([stations, pressure[:, None], wind, np.sin(season)[:, None], np.cos(season)[:, None]], 1)
    return x.astype(np.float32), tomorrow.astype(np.float32)


def datasets():
    x, y = weather(2001, 4)
    x_train, x_val, y_train, y_val = x[:1600], x[1600:], y[:1600], y[1600:]
    mean, std = x_train.mean(0), x_train.std(0)
    y_mean, y_std = y_train.mean(), y_train.std()

    def pack(a, b):
        return TensorDataset(torch.from_numpy((a - mean) / std), torch.from_numpy((b - y_mean) / y_std))

    return pack(x_train, y_train), pack(x_val, y_val), float(y_std)


class Net(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


def validate(model, loader, y_std):
    """Root mean square error in degrees, over the rows of all ranks."""
    model.eval()
    sums = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            err = (model(x) - y) * y_std
            sums += torch.tensor([(err**2).sum(), len(y)])
    dist.all_reduce(sums)
    rmse = (sums[0] / sums[1]).sqrt().item()
    model.train()
    return rmse


def worker(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(8)
    torch.set_num_threads(1)
    train, val, y_std = datasets()
    sampler = DistributedSampler(train, num_replicas=WORLD, rank=rank, shuffle=True, seed=8)
    train_loader = DataLoader(train, batch_size=BATCH, sampler=sampler, drop_last=True)
    val_loader = DataLoader(Subset(val, range(rank, len(val), WORLD)), batch_size=64)
    model = DDP(Net(train.tensors[0].shape[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=EPOCHS * len(train_loader))
    best = float("inf")
    for epoch in range(EPOCHS):
        total = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            pred = model(x)
            loss = nn.functional.mse_loss(pred, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        rmse = validate(model, val_loader, y_std)
        if rank == 0:
            print(f"epoch {epoch}  train {total / len(train_loader):.4f}  val rmse {rmse:.3f} degrees", flush=True)
            if rmse < best:
                best = rmse
                torch.save(model.module.state_dict(), "weather.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD)
