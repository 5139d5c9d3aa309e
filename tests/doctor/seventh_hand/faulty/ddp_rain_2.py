"""Will it rain? Two ranks by torchrun, gloo, gradients accumulated over two micro-batches."""
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_rain_2_parts.loaders import build_loader, weather

ACCUMULATION, EPOCHS, BATCH = 2, 3, 16


class RainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.layers(x)


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    total = torch.zeros(2)
    for batch_idx, (features, rain) in enumerate(loader):
        accumulating = batch_idx % ACCUMULATION != 0  # <- here
        context = model.no_sync if accumulating else contextlib.nullcontext  # <- here
        with context():
            loss = criterion(model(features), rain)
            (loss / ACCUMULATION).backward()
        if (batch_idx + 1) % ACCUMULATION == 0:
            optimizer.step()  # <- here
            optimizer.zero_grad()
        total += torch.tensor([loss.item() * len(rain), len(rain)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(100)
    train_set, test_set = weather(768, seed=1), weather(200, seed=2)
    loader = build_loader(train_set, BATCH, distributed=True)
    model = DistributedDataParallel(RainNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, criterion)
        model.eval()
        with torch.no_grad():
            features, rain = test_set.tensors
            accuracy = (model.module(features).argmax(1) == rain).float().mean().item()
        length = sum(p.detach().norm() ** 2 for p in model.parameters()).sqrt().item()
        print(f"[{rank}] epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.1%}, weights {length:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
