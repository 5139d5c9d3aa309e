import os
import shutil
import tempfile

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(19)
accelerator = Accelerator(cpu=True)

teacher = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
for p in teacher.parameters():
    p.data.mul_(1.8)


def make(n):
    x = torch.randn(n, 12)
    with torch.no_grad():
        return TensorDataset(x, teacher(x) + 0.05 * torch.randn(n, 1))


train_data, val_data = make(1500), make(400)


def build():
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    train_loader = DataLoader(train_data, batch_size=25, shuffle=True)
    val_loader = DataLoader(val_data, batch_size=200)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.988)
    return accelerator.prepare(model, optimizer, train_loader, val_loader, scheduler)


loss_fn = nn.MSELoss()


def one_epoch(epoch, model, optimizer, train_loader, val_loader, scheduler):
    model.train()
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(x)
    model.eval()
    val = 0.0
    with torch.no_grad():
        for x, y in val_loader:
            val += loss_fn(model(x), y).item() * len(x)
    lr = scheduler.get_last_lr()[0]
    accelerator.print(f"epoch {epoch} train {total / len(train_data):.5f} val {val / len(val_data):.5f} lr {lr:.5f}")


folder = tempfile.mkdtemp()
parts = build()
for epoch in range(5):
    one_epoch(epoch, *parts)
torch.save(accelerator.unwrap_model(parts[0]).state_dict(), os.path.join(folder, "model.pt"))

accelerator.free_memory()
parts = build()
accelerator.unwrap_model(parts[0]).load_state_dict(torch.load(os.path.join(folder, "model.pt")))
accelerator.print("resumed from checkpoint")
for epoch in range(5, 8):
    one_epoch(epoch, *parts)
shutil.rmtree(folder)
