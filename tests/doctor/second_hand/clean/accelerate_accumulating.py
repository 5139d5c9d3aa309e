"""Accelerate's own accumulation and clipping, whose schedule is as long as the updates."""

from __future__ import annotations

import math

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    x = torch.randn(360, 10)
    y = (x[:, :2] * x[:, 2:4]).sum(1, keepdim=True)
    train = DataLoader(TensorDataset(x[:288], y[:288]), batch_size=16, shuffle=True)
    test = DataLoader(TensorDataset(x[288:], y[288:]), batch_size=24)
    model = nn.Sequential(nn.Linear(10, 48), nn.GELU(), nn.Dropout(0.05), nn.Linear(48, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    epochs = 2
    updates = epochs * math.ceil(len(train) / 2)
    scheduler = LinearLR(optimizer, 1.0, 0.05, total_iters=updates)
    model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
    for epoch in range(epochs):
        model.train()
        for inputs, targets in train:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        squared = []
        for inputs, targets in test:
            with torch.no_grad():
                errors = (model(inputs) - targets).square()
            squared.append(accelerator.gather_for_metrics(errors))
        accelerator.print(epoch, torch.cat(squared).mean().item())


if __name__ == "__main__":
    main()
