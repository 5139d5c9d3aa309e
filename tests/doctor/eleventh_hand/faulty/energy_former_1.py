"""Power demand of buildings, a day from a week: a transformer encoder with a trainer and early stopping."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class ForecastConfig:
    context: int = 28
    horizon: int = 4
    d_model: int = 32
    nhead: int = 4
    layers: int = 2
    batch_size: int = 32
    lr: float = 2e-3
    max_epochs: int = 9
    patience: int = 3


class BuildingDataset(Dataset):
    def __init__(self, cfg, series, mean, std):
        self.cfg, self.series = cfg, (series - mean) / std
        self.per_series = series.shape[1] - cfg.context - cfg.horizon + 1

    def __len__(self):
        return self.series.shape[0] * (self.per_series // 4)

    def __getitem__(self, index):
        row, start = divmod(index, self.per_series // 4)
        window = self.series[row, 4 * start : 4 * start + self.cfg.context + self.cfg.horizon]
        return window[: self.cfg.context, None], window[self.cfg.context :]


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class DemandTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(1, cfg.d_model)
        self.pos = PositionalEncoding(cfg.d_model)
        layer = nn.TransformerEncoderLayer(cfg.d_model, cfg.nhead, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, cfg.layers)
        self.head = nn.Linear(cfg.d_model, cfg.horizon)

    def forward(self, x):
        hidden = self.encoder(self.pos(self.embed(x)))
        return self.head(hidden[:, -1])


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def step(self, score, model):
        if score < self.best:
            self.best, self.bad, self.state = score, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def demand(buildings, days, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(days * 4).float()
    phase = torch.rand(buildings, 1, generator=g) * 4
    size = 80 + 60 * torch.rand(buildings, 1, generator=g)
    curve = 1 + 0.5 * torch.sin(2 * math.pi * (t + phase) / 4) + 0.3 * torch.sin(2 * math.pi * (t + phase) / 28)
    return size * curve + 6 * torch.randn(buildings, days * 4, generator=g)


def run_epoch(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    total, rows = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for past, future in loader:
            loss = criterion(model(past), future)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total, rows = total + loss.item() * len(past), rows + len(past)
    return total / rows


def main(cfg=ForecastConfig()):
    torch.manual_seed(0)
    train_series, valid_series = demand(24, 90, 1), demand(6, 90, 2)
    mean, std = train_series.mean(), train_series.std()
    train_loader = DataLoader(BuildingDataset(cfg, train_series, mean, std), cfg.batch_size, shuffle=True)
    valid_loader = DataLoader(BuildingDataset(cfg, valid_series, mean, std), cfg.batch_size)
    model = DemandTransformer(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    stopper = EarlyStopping(cfg.patience)
    for epoch in range(cfg.max_epochs):
        train_loss = run_epoch(model, train_loader, nn.L1Loss(), optimizer)
        valid_loss = run_epoch(model, valid_loader, nn.L1Loss())
        print(f"epoch {epoch} train {train_loss:.4f} valid {valid_loss:.4f}")
        if stopper.step(valid_loss, model):
            break
    model.load_state_dict(stopper.state)
    print(f"best valid {stopper.best:.4f}, again {run_epoch(model, valid_loader, nn.L1Loss()):.4f}")


if __name__ == "__main__":
    main()
