import copy
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainConfig:
    seed: int = 11
    rows: int = 1400
    batch_size: int = 64
    hidden: int = 48
    lr: float = 3e-3
    max_epochs: int = 25
    patience: int = 3


def make_frame(cfg: TrainConfig) -> pd.DataFrame:
    """Flats of three towns; the rent depends on size, age, floor and town."""
    rng = np.random.default_rng(cfg.seed)
    df = pd.DataFrame({
        "sqm": rng.normal(70, 20, cfg.rows).clip(20, 160),
        "age": rng.integers(0, 90, cfg.rows),
        "floor": rng.integers(0, 9, cfg.rows),
        "town": rng.choice(["ashby", "corby", "derby"], cfg.rows),
    })
    per_sqm = df["town"].map({"ashby": 9.0, "corby": 12.0, "derby": 17.0})
    df["rent"] = per_sqm * df["sqm"] - 1.5 * df["age"] + 12 * df["floor"] + rng.normal(0, 35, cfg.rows)
    return df


class Standardizer:
    def fit(self, x: np.ndarray) -> "Standardizer":
        self.mean, self.std = x.mean(axis=0), x.std(axis=0) + 1e-8
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.mean) / self.std).astype(np.float32)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        return x * self.std + self.mean


class RentNet(nn.Module):
    def __init__(self, n_in: int, hidden: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.body(x))


class Trainer:
    def __init__(self, cfg: TrainConfig):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self._prepare()
        self.model = RentNet(self.n_in, cfg.hidden)
        self.loss = nn.MSELoss()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, mode="max", factor=0.5, patience=2)

    def _prepare(self):
        df = make_frame(self.cfg)
        df = pd.get_dummies(df, columns=["town"], dtype=float)
        x, y = df.drop(columns="rent").to_numpy(float), df["rent"].to_numpy(float)
        order = np.random.default_rng(0).permutation(len(df))
        n_train, n_val = int(0.7 * len(df)), int(0.15 * len(df))
        parts = order[:n_train], order[n_train:n_train + n_val], order[n_train + n_val:]
        self.xs = Standardizer().fit(x[parts[0]])
        self.ys = Standardizer().fit(y[parts[0]])
        sets = [TensorDataset(torch.from_numpy(self.xs.transform(x[p])), torch.from_numpy(self.ys.transform(y[p]))) for p in parts]
        self.train_loader = DataLoader(sets[0], batch_size=self.cfg.batch_size, shuffle=True)
        self.val_loader = DataLoader(sets[1], batch_size=256)
        self.test_loader = DataLoader(sets[2], batch_size=256)
        self.n_in = x.shape[1]

    def train_epoch(self) -> float:
        self.model.train()
        total, seen = 0.0, 0
        for xb, yb in self.train_loader:
            self.opt.zero_grad()
            loss = self.loss(self.model(xb), yb.unsqueeze(1))
            loss.backward()
            self.opt.step()
            total, seen = total + loss.item() * len(xb), seen + len(xb)
        return total / seen

    @torch.no_grad()
    def evaluate(self, loader) -> tuple[float, float]:
        self.model.eval()
        pred = torch.cat([self.model(xb) for xb, _ in loader])
        true = torch.cat([yb for _, yb in loader]).unsqueeze(1)
        mae = np.abs(self.ys.inverse(pred.numpy()) - self.ys.inverse(true.numpy())).mean()
        return self.loss(pred, true).item(), float(mae)

    def fit(self):
        best, best_state, bad = float("inf"), None, 0
        for epoch in range(self.cfg.max_epochs):
            tr = self.train_epoch()
            va, mae = self.evaluate(self.val_loader)
            self.sched.step(-va)
            print(f"[{epoch:02d}] train {tr:.4f}  val {va:.4f}  val MAE {mae:.1f}  lr {self.opt.param_groups[0]['lr']:.1e}")
            if va < best:
                best, best_state, bad = va, copy.deepcopy(self.model.state_dict()), 0
            else:
                bad += 1
                if bad > self.cfg.patience:
                    break
        self.model.load_state_dict(best_state)
        print("test MAE: %.1f" % self.evaluate(self.test_loader)[1])


if __name__ == "__main__":
    Trainer(TrainConfig()).fit()
