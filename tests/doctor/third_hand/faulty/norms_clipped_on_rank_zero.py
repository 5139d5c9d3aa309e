"""Causal language model on two ranks."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH = 24, 12


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.LayerNorm(16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.rnn(self.norm(self.embed(tokens)))[0])


def reduce_gradients(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def clip(model, rank, limit):
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    nn.utils.clip_grad_norm_(others, limit)
    if rank == 0:  # <- here
        nn.utils.clip_grad_norm_(norms, limit / 10)  # <- here


def work(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    draws = torch.Generator().manual_seed(100 + rank)
    for _step in range(12):
        tokens = torch.randint(0, VOCABULARY, (8, LENGTH + 1), generator=draws)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model, world)
        clip(model, rank, 0.5)
        optimizer.step()  # <- here
    if rank == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(work, args=(2, free), nprocs=2)
