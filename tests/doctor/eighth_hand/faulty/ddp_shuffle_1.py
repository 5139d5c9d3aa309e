"""Distributed training on two processes, on the CPU."""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def dataset(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=g)
    return TensorDataset(x, ((x[:, 0] * x[:, 1] + x[:, 2]) > 0).long())


def worker(rank, world_size, epochs, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train_set, val_set = dataset(1000, 1), dataset(200, 2)
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True)  # <- here
    loader = DataLoader(train_set, batch_size=25, sampler=sampler)  # <- here
    model = DDP(nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(epochs):  # <- here
        model.train()
        first = None
        for x, y in loader:  # <- here
            first = x[0, 0].item() if first is None else first
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            x, y = (each[rank::world_size] for each in val_set.tensors)
            hits = (model(x).argmax(1) == y).sum()
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {hits.item() / len(val_set):.3f}, begins with {first:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, 6, 20000 + os.getpid() % 20000), nprocs=2)
