"""Three folds: what one model validates on, another trains on; early stopping; the best state is restored."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(60, 6), torch.arange(60) % 2)
folds = torch.randperm(60).chunk(3)
for held_out in range(3):
    rest = torch.cat([fold for number, fold in enumerate(folds) if number != held_out])
    train = DataLoader(Subset(dataset, rest.tolist()), batch_size=10, shuffle=True)
    valid = DataLoader(Subset(dataset, folds[held_out].tolist()), batch_size=20)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    best, patience, state = float("inf"), 0, None
    for _epoch in range(20):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.inference_mode():
            score = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in valid)
        if score < best:
            best, patience, state = score, 0, copy.deepcopy(model.state_dict())
        else:
            patience += 1
            if patience == 2:
                break
    model.load_state_dict(state)
    torch.save(model.state_dict(), f"fold{held_out}.pt")
