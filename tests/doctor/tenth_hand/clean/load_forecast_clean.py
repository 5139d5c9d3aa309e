"""Forecast the electric load of the next six hours from the last two days (GRU encoder, dataclass config)."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    history: int = 48
    horizon: int = 6
    hidden: int = 32
    batch_size: int = 64
    epochs: int = 3
    seed: int = 11


def make_series(hours=1500):
    t = torch.arange(hours, dtype=torch.float32)
    daily = torch.sin(2 * math.pi * t / 24)
    weekly = torch.cos(2 * math.pi * t / 168)
    load = 4200 + 900 * daily + 350 * weekly + 120 * torch.randn(hours)
    temperature = 11 + 6 * torch.sin(2 * math.pi * (t - 4) / 24) + torch.randn(hours)
    return torch.stack([load, temperature], dim=1)


def windows(series, config):
    length = config.history + config.horizon
    pieces = series.unfold(0, length, 1).transpose(1, 2)
    return pieces[:, : config.history], pieces[:, config.history :, 0]


class Forecaster(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rnn = nn.GRU(2, config.hidden, batch_first=True)
        self.head = nn.Linear(config.hidden, config.horizon)

    def forward(self, x):
        _, last = self.rnn(x)
        return self.head(last[-1])


class Trainer:
    def __init__(self, model, train_loader, val_loader, scale):
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.scale = scale
        self.loss_fn = nn.MSELoss()

    def find_lr(self, low=1e-5, high=2.0, steps=14):
        """Range test: the rate grows with each batch; the steepest fall of the loss is taken."""
        start = copy.deepcopy(self.model.state_dict())
        optimizer = torch.optim.Adam(self.model.parameters(), lr=low)
        rates, losses = [], []
        batches = iter(self.train_loader)
        for step in range(steps):
            rate = low * (high / low) ** (step / (steps - 1))
            for group in optimizer.param_groups:
                group["lr"] = rate
            x, y = next(batches)
            loss = self.loss_fn(self.model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.append(rate)
            losses.append(loss.item())
        self.model.load_state_dict(start)
        best = min(range(1, steps), key=lambda i: losses[i] - losses[i - 1])
        return min(max(rates[best] / 3, 1e-3), 1e-2)

    def fit(self, epochs, lr):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        for epoch in range(epochs):
            self.model.train()
            for x, y in self.train_loader:
                optimizer.zero_grad()
                loss = self.loss_fn(self.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
            print(f"epoch {epoch} lr {lr:.4f} mae {self.evaluate():.1f} MW")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        error, count = 0.0, 0
        for x, y in self.val_loader:
            error += (self.model(x) - y).abs().sum().item() * self.scale
            count += y.numel()
        return error / count


def main():
    config = Config()
    torch.manual_seed(config.seed)
    series = make_series()
    train_part, val_part = series[:1200], series[1200:]
    mean, std = train_part.mean(0), train_part.std(0)
    x_train, y_train = windows((train_part - mean) / std, config)
    x_val, y_val = windows((val_part - mean) / std, config)
    train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=config.batch_size, shuffle=True)
    val_loader = DataLoader(TensorDataset(x_val, y_val), batch_size=config.batch_size)
    trainer = Trainer(Forecaster(config), train_loader, val_loader, std[0].item())
    lr = trainer.find_lr()
    trainer.fit(config.epochs, lr)


if __name__ == "__main__":
    main()
