"""Tide levels one hour ahead: sliding windows and an LSTM (a flat script in the manner of a blog post)."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.preprocessing import MinMaxScaler
from torch.utils.data import DataLoader, TensorDataset

np.random.seed(1)
torch.manual_seed(1)

SEQ_LEN = 24
BATCH = 48
HIDDEN = 32
LR = 4e-3
EPOCHS = 8

# ---------------------------------------------------------------- data
hours = np.arange(2400)
level = (
    1.8 * np.sin(2 * np.pi * hours / 12.42) + 0.7 * np.sin(2 * np.pi * hours / 24 + 1.0)
    + 0.0006 * hours + 0.12 * np.random.randn(len(hours))
)
wind = np.convolve(np.random.randn(len(hours)), np.ones(8) / 8, mode="same")
level = level + 0.8 * np.roll(wind, 3)
series = np.stack([level, wind], axis=1).astype(np.float32)

split = int(0.8 * len(series))
scaler = MinMaxScaler(feature_range=(-1, 1))
scaled = scaler.fit_transform(series)
train_data = scaled[:split]
test_data = scaled[split - SEQ_LEN:]


def sliding_windows(data, seq_length):
    xs, ys = [], []
    for i in range(len(data) - seq_length):
        xs.append(data[i : i + seq_length])
        ys.append(data[i + seq_length, :1])
    return torch.tensor(np.array(xs)), torch.tensor(np.array(ys))


x_train, y_train = sliding_windows(train_data, SEQ_LEN)
x_test, y_test = sliding_windows(test_data, SEQ_LEN)
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=BATCH, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=BATCH)


# --------------------------------------------------------------- model
class TideLSTM(nn.Module):
    def __init__(self, input_size=2, hidden_size=HIDDEN, num_layers=1, output_size=1):
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)
        self.fc = nn.Linear(hidden_size, output_size)

    def forward(self, x):
        out, (h_n, c_n) = self.lstm(x)
        return self.fc(out[:, -1])


model = TideLSTM()
loss_function = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=LR)


def unscale(values):
    return (values - scaler.min_[0]) / scaler.scale_[0]


def test_error():
    model.eval()
    squares, rows = 0.0, 0
    with torch.no_grad():
        for xb, yb in test_loader:
            squares += ((unscale(model(xb)) - unscale(yb)) ** 2).sum().item()
            rows += len(xb)
    return (squares / rows) ** 0.5


# ------------------------------------------------------------ training
losses = []
for epoch in range(EPOCHS):
    model.train()
    for xb, yb in train_loader:
        y_pred = model(xb)
        loss = loss_function(y_pred, yb)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"Epoch {epoch}: loss {np.mean(losses[-len(train_loader):]):.5f}, test RMSE {test_error():.3f} m")

persistence = unscale(x_test[:, -1, :1]) - unscale(y_test)
print(f"persistence RMSE {(persistence ** 2).mean().sqrt().item():.3f} m")
