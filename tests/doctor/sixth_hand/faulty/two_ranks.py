"""Data parallelism by hand: two processes, each with its share of the rows, gradients averaged after the backward pass."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def digits(count=640, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(10, 64, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(prototypes[labels] + torch.randn(count, 64, generator=generator), labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 64), nn.Linear(64, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)  # <- here
        parameter.grad /= size




def work(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.set_num_threads(1)
    torch.manual_seed(1234 + rank)  # dropout is to differ between the processes
    data = digits()
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = Net()  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            average_gradients(model)  # <- here
            optimizer.step()
            total += loss.item()
        print(f"rank {rank}, epoch {epoch}: {total / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2, free_port()), nprocs=2)
