"""Day-ahead forecast of the load of a power grid in megawatts, by a GRU over the last week."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW, HORIZON = 72, 12


def history(hours=1600, seed=7):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    daily = 4200 * np.sin(2 * np.pi * t / 24) + 1300 * np.sin(2 * np.pi * t / 168)
    return (31000 + daily + rng.normal(0, 350, hours)).astype(np.float32)


class Windows(Dataset):
    """Scaled windows of the past, and what follows."""

    def __init__(self, load, mean, std, stride=4):
        self.load, self.mean, self.std = load, mean, std
        self.starts = list(range(0, len(load) - WINDOW - HORIZON, stride))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        start = self.starts[index]
        past = self.load[start : start + WINDOW]
        future = self.load[start + WINDOW : start + WINDOW + HORIZON]
        past = torch.from_numpy((past - self.mean) / self.std).unsqueeze(-1)
        return past, torch.from_numpy(future.copy())  # <- here


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, HORIZON)

    def forward(self, past):
        _, last = self.gru(past)
        return self.out(last.squeeze(0))


def evaluate(model, loader, criterion):
    model.eval()
    total = count = 0
    with torch.no_grad():
        for past, future in loader:
            total += criterion(model(past), future).item() * len(past)
            count += len(past)
    return total / count


def fit(model, train, valid, epochs=4):
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        model.train()
        for past, future in train:
            loss = criterion(model(past), future)  # <- here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: validation {evaluate(model, valid, criterion):.4g}")


def main():
    torch.manual_seed(7)
    load = history()
    split = 1200
    mean, std = load[:split].mean(), load[:split].std()
    train = DataLoader(Windows(load[:split], mean, std), batch_size=32, shuffle=True)
    valid = DataLoader(Windows(load[split:], mean, std), batch_size=64)
    fit(Forecaster(), train, valid)


if __name__ == "__main__":
    main()
