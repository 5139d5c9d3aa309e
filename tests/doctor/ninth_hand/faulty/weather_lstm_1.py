import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

np.random.seed(21)
torch.manual_seed(21)
WINDOW, HORIZON = 24, 1

hours = np.arange(3000)
temperature = 12 + 8 * np.sin(2 * np.pi * hours / 24) + 5 * np.sin(2 * np.pi * hours / 700) + np.random.normal(0, 1.2, 3000)
pressure = 1010 + 6 * np.cos(2 * np.pi * hours / 160) + np.random.normal(0, 0.8, 3000)
table = np.stack([temperature, pressure], 1).astype("float32")
split = int(0.8 * len(table))
mean, std = table[:split].mean(0), table[:split].std(0)
table = (table - mean) / std


class Windows(Dataset):
    def __init__(self, values):
        self.values = torch.from_numpy(values)

    def __len__(self):
        return len(self.values) - WINDOW - HORIZON + 1

    def __getitem__(self, i):
        x = self.values[i : i + WINDOW]
        y = self.values[i + WINDOW + HORIZON - 1, 0]
        return x, y


class Forecaster(nn.Module):
    def __init__(self, features=2, hidden=32):
        super().__init__()
        self.hidden_size = hidden
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)
        self.state = None

    def forward(self, x):
        out, state = self.lstm(x, self.state)  # <- here
        self.state = tuple(each.detach() for each in state)  # <- here
        return self.fc(out[:, -1]).squeeze(-1)


train_loader = DataLoader(Windows(table[:split]), batch_size=64, shuffle=True, drop_last=True)  # <- here
test_loader = DataLoader(Windows(table[split:]), batch_size=64, drop_last=True)
model = Forecaster()
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(4):
    model.train()
    train_losses = []
    for x, y in train_loader:
        pred = model(x)
        loss = loss_fn(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(x) - y for x, y in test_loader])
    rmse = errors.pow(2).mean().sqrt().item() * std[0]
    print(f"Epoch {epoch + 1} train {np.mean(train_losses):.4f} test rmse {rmse:.2f} degrees")
