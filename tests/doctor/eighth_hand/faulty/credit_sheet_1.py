"""Who pays back? A network on a sheet of (drawn) credits."""
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH_SIZE, LEARNING_RATE = 8, 64, 1e-2


def sheet(count=2400, seed=7):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(20, 70, count),
            "income": rng.lognormal(10, 0.4, count),
            "debt": rng.lognormal(8, 0.8, count),
            "years": rng.integers(0, 30, count).astype(float),
            "score": rng.normal(600, 80, count),
        }
    )
    risk = 3.5 * frame.debt / frame.income - 0.02 * (frame.score - 600) - 0.05 * (frame.years - 15)
    frame["default"] = (risk + 0.3 * rng.normal(size=count) > risk.median()).astype(int)
    return frame.sort_values("default", ignore_index=True)  # as the bank exports it


class BinaryClassification(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer_1, self.layer_2, self.layer_out = nn.Linear(features, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(p=0.1)

    def forward(self, inputs):
        x = self.relu(self.layer_1(inputs))
        x = self.dropout(self.relu(self.layer_2(x)))
        return self.layer_out(x)


def binary_acc(y_pred, y_test):
    return (torch.round(torch.sigmoid(y_pred)) == y_test).float().mean().item()


torch.manual_seed(69)
df = sheet()
X, y = df.drop(columns="default"), df["default"]
# the bank wants to lend to richer customers than before: they are the test
later = df["income"] > df["income"].quantile(0.75)
X_train, X_test = X[~later], X[later]
y_train, y_test = y[~later], y[later]

scaler = StandardScaler()
X_train = scaler.fit_transform(X_train)
X_test = scaler.fit_transform(X_test)  # <- here


def tensors(features, labels):
    return TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels.to_numpy(), dtype=torch.float32).unsqueeze(1))


train_loader = DataLoader(tensors(X_train, y_train), batch_size=BATCH_SIZE, shuffle=True)
test_loader = DataLoader(tensors(X_test, y_test), batch_size=len(X_test))  # <- here
model = BinaryClassification(X.shape[1])
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

for e in range(1, EPOCHS + 1):
    model.train()
    epoch_loss = 0.0
    for X_batch, y_batch in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(X_batch), y_batch)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    model.eval()
    with torch.no_grad():
        accuracies = [binary_acc(model(X_batch), y_batch) for X_batch, y_batch in test_loader]
    print(f"Epoch {e}: | Loss: {epoch_loss / len(train_loader):.5f} | Test acc: {100 * accuracies[0]:.2f}")
