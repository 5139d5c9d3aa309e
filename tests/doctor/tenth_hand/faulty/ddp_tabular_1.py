"""Regression of a table on two processes (gloo), started by torch.multiprocessing.spawn."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def table(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=gen)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] - 0.3 * x[:, 3:4] + 0.1 * torch.randn(count, 1, generator=gen)
    return TensorDataset(x, y)


def build():
    return nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))


def train(rank, world_size, init_file, epochs):
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=world_size)
    torch.set_num_threads(1)
    torch.manual_seed(100)
    dataset = table(768, 1)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    validation = table(200, 2)

    model = DDP(build())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.MSELoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model.module(x), y)
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            model.eval()
            with torch.no_grad():
                x, y = validation.tensors
                val = criterion(model.module(x), y).item()
            print(f"epoch {epoch} train {total.item() / world_size:.4f} val {val:.4f}", flush=True)
        dist.barrier()

    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = [torch.zeros_like(weights) for _ in range(world_size)]
    dist.all_gather(gathered, weights)
    if rank == 0:
        print(f"largest difference of the ranks {(gathered[0] - gathered[1]).abs().max().item():.2e}", flush=True)
    dist.destroy_process_group()


def main():
    world_size = 2
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(world_size, os.path.join(folder, "rendezvous"), 3), nprocs=world_size, join=True)


if __name__ == "__main__":
    main()
