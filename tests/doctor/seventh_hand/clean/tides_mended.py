"""Heights of tides from moon and wind; trained in two sittings, the second goes on from the first's checkpoint."""
import math
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tides_mended_parts.checkpoint import load_checkpoint, save_checkpoint

EPOCHS, FIRST_SITTING, FOLDER = 6, 3, "tides_checkpoints"


def tides(count, seed):
    generator = torch.Generator().manual_seed(seed)
    moon, wind = torch.rand(count, generator=generator), torch.randn(count, 3, generator=generator)
    height = torch.sin(2 * math.pi * moon) + 0.4 * wind[:, 0] * wind[:, 1] + 0.1 * torch.randn(count, generator=generator)
    return TensorDataset(torch.cat([torch.cos(6.283 * moon)[:, None], torch.sin(6.283 * moon)[:, None], wind], dim=1), height[:, None])


def make():
    torch.manual_seed(33)
    model = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 16 - 10)
    return model, optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [10])


def sitting(until, resume=None):
    model, optimizer, schedule = make()
    start = 0
    if resume:
        start = load_checkpoint(resume, model, optimizer, schedule)
    loader = DataLoader(tides(512, seed=1), batch_size=32, shuffle=True)
    criterion = nn.MSELoss()
    for epoch in range(start, until):
        total = 0.0
        for features, height in loader:
            loss = criterion(model(features), height)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() / len(loader)
        print(f"epoch {epoch}: {total:.4f} at a rate of {schedule.get_last_lr()[0]:.5f}")
        save_checkpoint(os.path.join(FOLDER, "last.pt"), model, optimizer, schedule, epoch + 1)


if __name__ == "__main__":
    os.makedirs(FOLDER, exist_ok=True)
    sitting(FIRST_SITTING)
    print("a new sitting")
    sitting(EPOCHS, resume=os.path.join(FOLDER, "last.pt"))
