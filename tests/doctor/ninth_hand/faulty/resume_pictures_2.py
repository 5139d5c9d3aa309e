"""Trains for some epochs, is cut off, and goes on from its checkpoint (main is called twice, as a scheduler of jobs would)."""
import pathlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CKPT = pathlib.Path("runs")
EPOCHS = 8


def stripes(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    base = torch.randn(4, 1, 10, 10, generator=torch.Generator().manual_seed(100))
    return TensorDataset(base[y] + 1.3 * torch.randn(n, 1, 10, 10, generator=g), y)


def build():
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16 * 36, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    return model, optimizer, scheduler


def save(path, model, optimizer, scheduler, epoch, best):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epoch": epoch, "best": best}, path)


def main(stop_after=None):
    CKPT.mkdir(exist_ok=True)
    train_loader = DataLoader(stripes(640, 1), 32, shuffle=True)
    val_loader = DataLoader(stripes(200, 2), 100)
    model, optimizer, scheduler = build()
    start, best = 0, 0.0
    if (CKPT / "last.pt").exists():
        state = torch.load(CKPT / "last.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        start, best = state["epoch"] + 1, state["best"]
        print("resuming at epoch", start)
    for epoch in range(start, EPOCHS):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            acc = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader) / 200
        if acc > best:  # <- here
            save(CKPT / "best.pt", model, optimizer, scheduler, epoch, best)  # <- here
        save(CKPT / "last.pt", model, optimizer, scheduler, epoch, best)
        print(f"epoch {epoch} lr {scheduler.get_last_lr()[0]:.5f} loss {loss.item():.3f} acc {acc:.3f} best {best:.3f}")
        if epoch == stop_after:
            return
    model.load_state_dict(torch.load(CKPT / "best.pt", weights_only=True)["model"])
    model.eval()
    test = stripes(400, 3)
    with torch.no_grad():
        print("test", (model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean().item())


if __name__ == "__main__":
    torch.manual_seed(0)
    main(stop_after=3)
    main()
