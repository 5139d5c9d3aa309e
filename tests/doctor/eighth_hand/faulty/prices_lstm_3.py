# %% forecasting a (drawn) price with an LSTM
import numpy as np
import torch
import torch.nn as nn
from sklearn.preprocessing import MinMaxScaler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)

# %% the series: a trend, two seasons and noise
t = np.arange(900)
price = 40 + 0.05 * t + 6 * np.sin(t / 12) + 3 * np.sin(t / 5 + 1) + np.random.normal(0, 0.6, len(t))
price = price.reshape(-1, 1)
lookback = 20
split = int(len(price) * 0.8)

# %% scaling
scaler = MinMaxScaler(feature_range=(-1, 1))
scaler.fit(price[:split])
scaled = scaler.transform(price)


# %% windows
def make_windows(series):
    X = np.stack([series[i : i + lookback] for i in range(len(series) - lookback)])
    y = series[lookback:]
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


X, y = make_windows(scaled)
order = torch.randperm(len(X))  # <- here
X_train, y_train = X[order[:700]], y[order[:700]]  # <- here
X_test, y_test = X[order[700:]], y[order[700:]]  # <- here
train_loader = DataLoader(TensorDataset(X_train, y_train), batch_size=32, shuffle=True)  # <- here
test_loader = DataLoader(TensorDataset(X_test, y_test), batch_size=64)  # <- here


# %% model
class LSTM(nn.Module):
    def __init__(self, hidden_dim=32, num_layers=1):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden_dim, num_layers, batch_first=True)
        self.fc = nn.Linear(hidden_dim, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1, :])


model = LSTM()
criterion = nn.MSELoss()
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

# %% training
for epoch in range(12):
    model.train()
    for xb, yb in train_loader:
        optimiser.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(xb).reshape(-1, 1) for xb, _ in test_loader])
        true = torch.cat([yb.reshape(-1, 1) for _, yb in test_loader])
    rmse = np.sqrt(((scaler.inverse_transform(predicted.numpy()) - scaler.inverse_transform(true.numpy())) ** 2).mean())
    if epoch % 4 == 3:
        print(f"Epoch {epoch}: MSE {loss.item():.5f}, test RMSE in prices {rmse:.3f}")
