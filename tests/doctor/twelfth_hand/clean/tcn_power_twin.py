"""Hourly power load, one step ahead with a small TCN (dilated causal convolutions)."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

np.random.seed(9)
torch.manual_seed(9)

HOURS, WINDOW = 2160, 48


def load_series():
    t = np.arange(HOURS)
    daily = np.sin(2 * np.pi * t / 24) + 0.5 * np.sin(4 * np.pi * t / 24 + 1)
    weekly = 0.6 * np.sin(2 * np.pi * t / 168)
    ar = np.zeros(HOURS)
    for i in range(1, HOURS):
        ar[i] = 0.8 * ar[i - 1] + 0.25 * np.random.randn()
    return (500 + 80 * (daily + weekly + ar)).astype(np.float32)


class WindowDataset(Dataset):
    """x: WINDOW values, y: the value after each of them"""

    def __init__(self, values, window=WINDOW, stride=1):
        self.values = torch.from_numpy(values)
        self.window = window
        self.starts = range(0, len(values) - window, stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        x = self.values[s:s + self.window]
        y = self.values[s + 1:s + self.window + 1]
        return x.unsqueeze(0), y


class CausalConv1d(nn.Module):
    def __init__(self, c_in, c_out, kernel_size, dilation):
        super().__init__()
        self.left = (kernel_size - 1) * dilation
        self.conv = nn.Conv1d(c_in, c_out, kernel_size, dilation=dilation)

    def forward(self, x):
        return self.conv(nn.functional.pad(x, (self.left, 0)))


class Block(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.c1 = CausalConv1d(channels, channels, 3, dilation)
        self.c2 = CausalConv1d(channels, channels, 3, dilation)

    def forward(self, x):
        return torch.relu(x + self.c2(torch.relu(self.c1(x))))


class TCN(nn.Module):
    def __init__(self, channels=20, dilations=(1, 2, 4)):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 1)
        self.blocks = nn.Sequential(*[Block(channels, d) for d in dilations])
        self.out = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))).squeeze(1)


series = load_series()
cut = int(0.8 * HOURS)
train_raw, test_raw = series[:cut], series[cut:]
mean, std = train_raw.mean(), train_raw.std()
train_ds = WindowDataset((train_raw - mean) / std, stride=2)
test_ds = WindowDataset((test_raw - mean) / std, stride=4)
train_dl = DataLoader(train_ds, batch_size=40, shuffle=True)
test_dl = DataLoader(test_ds, batch_size=64)

model = TCN()
criterion = nn.MSELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)


def evaluate():
    model.eval()
    err, naive, n = 0.0, 0.0, 0
    with torch.no_grad():
        for x, y in test_dl:
            pred = model(x)[:, -1]
            err += ((pred - y[:, -1]) ** 2).sum().item()
            naive += ((x[:, 0, -1] - y[:, -1]) ** 2).sum().item()
            n += len(y)
    return std * (err / n) ** 0.5, std * (naive / n) ** 0.5


for epoch in range(6):
    model.train()
    losses = []
    for x, y in train_dl:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    rmse, naive = evaluate()
    print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, test rmse {rmse:.1f} MW (last value: {naive:.1f} MW)")
