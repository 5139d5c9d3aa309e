"""Forecast of eight sensors, scaled by their past."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, past=24, ahead=6):
        self.series, self.past, self.ahead = series, past, ahead

    def __len__(self):
        return len(self.series) - self.past - self.ahead + 1

    def __getitem__(self, start):
        middle = start + self.past
        return self.series[start:middle], self.series[middle : middle + self.ahead]


class Spectral(nn.Module):
    def __init__(self, sensors=8, past=24, ahead=6):
        super().__init__()
        self.ahead, self.sensors = ahead, sensors
        self.mix = nn.Linear(2 * sensors * (past // 2 + 1), 64)
        self.head = nn.Linear(64, ahead * sensors)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=1, norm="ortho")
        features = torch.cat([spectrum.real, spectrum.imag], -1).flatten(1)
        return self.head(torch.relu(self.mix(features))).view(-1, self.ahead, self.sensors)


def load(hours=900):
    clock = torch.arange(hours, dtype=torch.float32)[:, None]
    phase = torch.linspace(0, 3, 8)
    return 20 + 0.01 * clock + 5 * torch.sin(clock / 4 + phase) + torch.randn(hours, 8)


torch.manual_seed(0)
series = load()
first, second = int(0.7 * len(series)), int(0.85 * len(series))
mean, deviation = series[:first].mean(0), series[:first].std(0)
series = (series - mean) / deviation
train = DataLoader(Windows(series[:first]), batch_size=64, shuffle=True)
validation = DataLoader(Windows(series[first:second]), batch_size=64)
test = DataLoader(Windows(series[second:]), batch_size=64)
model = Spectral()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
for epoch in range(4):
    model.train()
    for past, future in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(past), future)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = [(model(past) - future).abs().flatten(1).mean(1) for past, future in validation]
    print(epoch, loss.item(), torch.cat(errors).mean().item())
with torch.no_grad():
    errors = [(model(past) - future).abs().flatten(1).mean(1) for past, future in test]
print("test", torch.cat(errors).mean().item())
