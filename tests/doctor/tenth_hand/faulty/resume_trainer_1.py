"""A trainer that can be stopped and resumed: here it is stopped after two epochs and goes on in a new object."""
import os
import tempfile

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def spirals(count, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (count,), generator=gen)
    r = torch.rand(count, generator=gen)
    angle = 4 * r + label * 2.094 + 0.15 * torch.randn(count, generator=gen)
    points = torch.stack([r * angle.cos(), r * angle.sin()], dim=1) * 2
    return TensorDataset(points, label)


class Trainer:
    def __init__(self, total_epochs, checkpoint_path, seed=0):
        torch.manual_seed(seed)
        self.total_epochs = total_epochs
        self.checkpoint_path = checkpoint_path
        self.train_loader = DataLoader(spirals(600, 1), batch_size=50, shuffle=True)
        self.val_loader = DataLoader(spirals(200, 2), batch_size=100)
        self.model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=1e-4)
        steps = total_epochs * len(self.train_loader)
        warmup = len(self.train_loader) // 2
        self.scheduler = LambdaLR(
            self.optimizer, lambda s: (s + 1) / warmup if s < warmup else max(0.0, (steps - s) / (steps - warmup))
        )
        self.epoch = 0

    def save(self):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": self.epoch,
            },
            self.checkpoint_path,
        )

    def resume(self):
        checkpoint = torch.load(self.checkpoint_path, weights_only=True)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.epoch = checkpoint["epoch"]

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
        self.epoch += 1
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        correct = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)
        return correct / len(self.val_loader.dataset)

    def fit(self, until):
        while self.epoch < until:
            loss = self.train_epoch()
            lr = self.scheduler.get_last_lr()[0]
            print(f"epoch {self.epoch}/{self.total_epochs} loss {loss:.3f} lr {lr:.5f} accuracy {self.validate():.3f}")
        self.save()


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        first = Trainer(total_epochs=4, checkpoint_path=path, seed=1)
        first.fit(until=2)
        second = Trainer(total_epochs=4, checkpoint_path=path, seed=2)
        second.resume()
        print(f"resumed at epoch {second.epoch}: accuracy {second.validate():.3f}")
        second.fit(until=4)


if __name__ == "__main__":
    main()
