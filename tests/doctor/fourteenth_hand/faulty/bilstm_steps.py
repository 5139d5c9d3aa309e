import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

np.random.seed(3)
torch.manual_seed(3)

t = np.arange(1400)
series = np.sin(t / 9.0) + 0.5 * np.sin(t / 3.7) + 0.15 * np.random.randn(len(t))
train_part, test_part = series[:1000], series[1000:]
mu, sd = train_part.mean(), train_part.std()
train_part, test_part = (train_part - mu) / sd, (test_part - mu) / sd

seq_len = 8


def windows(data):
    xs, ys = [], []
    for i in range(len(data) - seq_len):
        xs.append(data[i:i + seq_len])
        ys.append(data[i + 1:i + seq_len + 1])
    xs = torch.tensor(np.array(xs), dtype=torch.float32).unsqueeze(-1)
    ys = torch.tensor(np.array(ys), dtype=torch.float32).unsqueeze(-1)
    return xs, ys


x_train, y_train = windows(train_part)
x_test, y_test = windows(test_part)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=32, shuffle=True)


class LSTMModel(nn.Module):
    def __init__(self, input_dim, hidden_dim, layer_dim, output_dim):
        super(LSTMModel, self).__init__()
        self.hidden_dim = hidden_dim
        self.directions = 2
        self.layer_dim = layer_dim
        self.lstm = nn.LSTM(input_dim, hidden_dim, layer_dim, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(hidden_dim, output_dim)

    def forward(self, x):
        batch, seq, _ = x.shape
        h0 = torch.zeros(self.layer_dim * self.directions, batch, self.hidden_dim)
        c0 = torch.zeros(self.layer_dim * self.directions, batch, self.hidden_dim)
        out, _ = self.lstm(x, (h0, c0))
        out = out.view(batch, seq, self.directions, self.hidden_dim)
        out = out[:, :, 0, :] + out[:, :, 1, :]
        return self.fc(out)


model = LSTMModel(1, 32, 1, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

for epoch in range(15):
    model.train()
    running = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(xb)
    model.eval()
    with torch.no_grad():
        pred = model(x_test)
        per_step = ((pred - y_test) ** 2).mean(dim=(0, 2))
    if epoch % 5 == 4:
        print(f"epoch {epoch} train {running / len(x_train):.4f} test {per_step.mean():.4f}")
print("test mse by step:", [round(v, 3) for v in per_step.tolist()])
