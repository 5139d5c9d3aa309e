import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Dataset

# Prices of wine bottles from lab values; a flat script with a Dataset of its own
rng = np.random.default_rng(42)
n = 1500
df = pd.DataFrame(
    {
        "alcohol": rng.normal(12.5, 1.1, n),
        "sugar": rng.gamma(2.0, 1.5, n),
        "acidity": rng.normal(0.5, 0.15, n),
        "sulphates": rng.normal(0.65, 0.1, n),
        "age": rng.integers(0, 25, n),
    }
)
df["price"] = (
    14 + 4.0 * (df.alcohol - 12.5) + 0.9 * df.age - 20 * (df.acidity - 0.5) ** 2 * 10 + 15 * (df.sulphates - 0.65)
    + 0.4 * np.sqrt(df.sugar) * (df.age > 10) + rng.normal(0, 1.0, n)
)

X = df.drop(columns="price").values.astype("float32")
y = df["price"].values.astype("float32")
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
x_scaler = StandardScaler().fit(X_train)
X_train, X_test = x_scaler.transform(X_train), x_scaler.transform(X_test)
y_mean, y_std = y_train.mean(), y_train.std()


class WineDataset(Dataset):
    def __init__(self, features, prices):
        self.features = torch.from_numpy(features)
        self.prices = torch.from_numpy((prices - y_mean) / y_std)

    def __len__(self):
        return len(self.prices)

    def __getitem__(self, i):
        return self.features[i], self.prices[i]


class Regressor(nn.Module):
    def __init__(self, n_in, hidden=48):
        super().__init__()
        self.fc1 = nn.Linear(n_in, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 1)
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = self.drop(torch.relu(self.fc2(x)))
        return self.fc3(x).squeeze(-1)


torch.manual_seed(0)
train_dl = DataLoader(WineDataset(X_train, y_train), batch_size=50, shuffle=True)
test_dl = DataLoader(WineDataset(X_test, y_test), batch_size=50)
model = Regressor(X.shape[1])
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=3)

EPOCHS = 25
history = {"train": [], "test": []}
for epoch in range(EPOCHS):
    model.train()
    total = 0.0
    for xb, yb in train_dl:
        optimizer.zero_grad()
        out = model(xb)
        loss = criterion(out, yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    history["train"].append(total / len(X_train))

    model.eval()
    sq, count = 0.0, 0
    with torch.no_grad():
        for xb, yb in test_dl:
            error = model(xb).flatten() - yb
            sq += (error**2).sum().item()
            count += len(xb)
    history["test"].append(sq / count)
    scheduler.step(history["test"][-1])
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1:3d} train {history['train'][-1]:.4f} test {history['test'][-1]:.4f} R2 {1 - history['test'][-1]:.3f}")

with torch.no_grad():
    sample = torch.from_numpy(X_test[:5])
    print("predicted", (model(sample).flatten().numpy() * y_std + y_mean).round(1), "true", y_test[:5].round(1))
