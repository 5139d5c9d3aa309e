"""Birds by their calls, trained in two sittings: checkpoints, a warm start and a schedule (trainer class)."""
import os
import shutil
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class TrainerConfig:
    max_epochs: int = 8
    batch_size: int = 32
    lr: float = 4e-3
    weight_decay: float = 1e-3
    snapshot_path: str = "snapshots/birds.pt"
    pretrained_path: str = "snapshots/backbone.pt"


class Calls(Dataset):
    """Spectrograms of 24 by 24 bytes: a call rises, falls or trembles at a pitch of its own."""

    def __init__(self, count, species, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, species, (count,), generator=g)
        t, f = torch.arange(24.0), torch.arange(24.0).view(1, 24, 1)
        slope = (self.labels % 4 - 1.5).view(-1, 1) * 0.35
        tremble = (self.labels >= 4).float().view(-1, 1) * 3 * torch.sin(1.3 * t)
        pitch = 11 + slope * (t - 12) + tremble + 3 * torch.randn(count, 1, generator=g)
        energy = torch.exp(-((f - pitch.unsqueeze(1)) ** 2) / 3)
        self.pictures = (255 * (0.6 * energy + 0.35 * torch.rand(count, 24, 24, generator=g)).clamp(0, 1)).to(torch.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.pictures[i].unsqueeze(0).float() / 255.0, self.labels[i]


class BirdNet(nn.Module):
    def __init__(self, species):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(32 * 9, species)

    def forward(self, x):
        return self.head(self.backbone(x))


class Trainer:
    def __init__(self, config, model, train_set, valid_set):
        self.config, self.model, self.epochs_run = config, model, 0
        self.train_loader = DataLoader(train_set, config.batch_size, shuffle=True)
        self.valid_loader = DataLoader(valid_set, 100)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config.max_epochs)
        if os.path.exists(config.snapshot_path):
            self._load_snapshot()
        elif os.path.exists(config.pretrained_path):
            self._load_backbone()

    def _load_backbone(self):
        state = torch.load(self.config.pretrained_path)["state_dict"]
        state = {k.removeprefix("module."): v for k, v in state.items() if "head" not in k}
        self.model.load_state_dict(state, strict=False)
        print("backbone loaded")

    def _load_snapshot(self):
        snapshot = torch.load(self.config.snapshot_path)
        self.model.load_state_dict(snapshot["model"])
        self.epochs_run = snapshot["epochs_run"]
        print(f"resumed after epoch {self.epochs_run}")

    def _save_snapshot(self):
        os.makedirs(os.path.dirname(self.config.snapshot_path), exist_ok=True)
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict(),
             "epochs_run": self.epochs_run, "config": asdict(self.config)},
            self.config.snapshot_path,
        )

    def train(self, stop_after):
        while self.epochs_run < stop_after:
            self.model.train()
            total = 0.0
            for x, y in self.train_loader:
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item() * len(x)
            self.scheduler.step()
            self.epochs_run += 1
            self._save_snapshot()
            rate = self.scheduler.get_last_lr()[0]
            print(f"epoch {self.epochs_run} loss {total / len(self.train_loader.dataset):.4f} valid {self.validate():.3f} next rate {rate:.5f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.valid_loader)
        return hits / len(self.valid_loader.dataset)


def train_backbone(config):
    """What a cluster would have left: a model of all eight species, wrapped for several devices."""
    model = BirdNet(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    for epoch in range(4):
        for x, y in DataLoader(Calls(800, 8, 1), config.batch_size, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    os.makedirs(os.path.dirname(config.pretrained_path), exist_ok=True)
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, config.pretrained_path)


if __name__ == "__main__":
    torch.manual_seed(2)
    cfg = TrainerConfig()
    shutil.rmtree(os.path.dirname(cfg.snapshot_path), ignore_errors=True)
    train_backbone(cfg)
    train_set, valid_set = Calls(240, 6, 3), Calls(200, 6, 4)
    Trainer(cfg, BirdNet(6), train_set, valid_set).train(stop_after=4)
    Trainer(cfg, BirdNet(6), train_set, valid_set).train(stop_after=cfg.max_epochs)
