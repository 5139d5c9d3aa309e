import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD = 2


def setup(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wells(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    w = torch.randn(10, 1, generator=torch.Generator().manual_seed(50))
    return TensorDataset(x, torch.tanh(x @ w) + 0.1 * torch.randn(n, 1, generator=g))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 32)
        self.net2 = nn.Linear(32, 1)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


def worker(rank, port):
    torch.set_num_threads(1)
    setup(rank, port)
    torch.manual_seed(rank)
    dataset = wells(1024, 1)
    sampler = DistributedSampler(dataset, WORLD, rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    ddp_model = DDP(Net())
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        ddp_model.train()
        for x, y in loader:
            optimizer.zero_grad()
            pred = ddp_model.module(x)  # <- here
            loss = nn.functional.mse_loss(pred, y)
            loss.backward()  # <- here
            optimizer.step()  # <- here
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / WORLD:.4f}", flush=True)
    ddp_model.eval()
    test = wells(256, 2)
    if rank == 0:
        with torch.no_grad():
            print("test", nn.functional.mse_loss(ddp_model.module(test.tensors[0]), test.tensors[1]).item(), flush=True)
        torch.save(ddp_model.module.state_dict(), "wells.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(free_port(),), nprocs=WORLD, join=True)
