"""A wide residual network on small pictures that may be interrupted: state is written each epoch and read again."""
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"epochs": 6, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 32}


def pictures(count, seed, classes=5):
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(classes, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, classes, (count,), generator=generator)
    return TensorDataset(prototypes[labels] + 1.5 * torch.randn(count, 3, 16, 16, generator=generator), labels)


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        x = F.relu(self.bn1(x))
        return self.short(x) + self.conv2(F.relu(self.bn2(self.conv1(x))))


def network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), Block(8, 16, 2), Block(16, 32, 2),
                         nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))


class Session:
    def __init__(self, path, config):
        self.path, self.config, self.first = path, config, 0
        self.model = network()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=config["lr"], momentum=config["momentum"], weight_decay=config["weight_decay"]
        )
        self.schedule = CosineAnnealingLR(self.optimizer, T_max=config["epochs"])  # <- here
        if os.path.exists(path):
            self.load()

    def save(self, epoch):
        torch.save({"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "schedule": self.schedule.state_dict()}, self.path)

    def load(self):
        state = torch.load(self.path)  # <- here
        self.model.load_state_dict(state["model"])  # <- here
        self.first = state["epoch"] + 1
        print(f"goes on with epoch {self.first}")

    def run(self, data, until):
        for epoch in range(self.first, until):
            self.model.train()
            for images, labels in DataLoader(data, self.config["batch_size"], shuffle=True):
                loss = F.cross_entropy(self.model(images), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch}: rate {self.optimizer.param_groups[0]['lr']:.4f}, loss {loss.item():.3f}")
            self.schedule.step()
            self.save(epoch)


def main():
    torch.manual_seed(1)
    data = pictures(320, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        Session(path, CONFIG).run(data, until=3)
        Session(path, CONFIG).run(data, until=6)


if __name__ == "__main__":
    main()
