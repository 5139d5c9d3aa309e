"""Remaining life of pumps; the training is interrupted and goes on from its checkpoint."""
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pumps(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 12, generator=g)
    return TensorDataset(x, (torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(count, generator=g)).unsqueeze(1))


class BaseTrainer:
    def __init__(self, folder, max_epochs):
        self.folder, self.max_epochs, self.start_epoch = folder, max_epochs, 0
        self.model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizer = self.scheduler = None

    def setup(self):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.75)

    def save(self, epoch):
        state = {"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()}
        torch.save(state, os.path.join(self.folder, "last.pt"))

    def resume(self, path):
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["model"])
        self.start_epoch = checkpoint["epoch"] + 1
        if self.optimizer is not None and "optimizer" in checkpoint:
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.scheduler.load_state_dict(checkpoint["scheduler"])

    def train(self, loader, val_loader, stop_after=None):
        for epoch in range(self.start_epoch, self.max_epochs):
            self.model.train()
            rate = self.optimizer.param_groups[0]["lr"]
            for x, y in loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            self.model.eval()
            with torch.no_grad():
                off = sum(((self.model(x) - y) ** 2).sum().item() for x, y in val_loader) / len(val_loader.dataset)
            print(f"epoch {epoch}: rate {rate:.2e}, validation {off:.4f}")
            self.save(epoch)
            if stop_after is not None and epoch == stop_after:
                return


if __name__ == "__main__":
    torch.manual_seed(17)
    os.makedirs("run", exist_ok=True)
    loader = DataLoader(pumps(1600, 1), batch_size=32, shuffle=True)
    val_loader = DataLoader(pumps(400, 2), batch_size=200)
    first = BaseTrainer("run", max_epochs=12)
    first.setup()
    first.train(loader, val_loader, stop_after=5)
    print("--- interrupted")
    second = BaseTrainer("run", max_epochs=12)
    second.setup()
    second.resume("run/last.pt")
    second.train(loader, val_loader)
