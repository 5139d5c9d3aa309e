"""Will a loan be paid back? A table by pandas, scaled by scikit-learn, a network of three layers."""
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


def read(count, year, seed):
    """The loans of a year: first those that were paid back, then those that were not."""
    rng = np.random.default_rng(seed)
    raised = 1.0 + 0.12 * (year - 2019)
    frame = pd.DataFrame({
        "income": raised * rng.lognormal(10.3, 0.5, count),
        "amount": raised * rng.lognormal(9.0, 0.7, count),
        "age": rng.integers(20, 75, count),
        "late_payments": rng.poisson(0.8, count),
        "years_employed": rng.gamma(2.0, 3.0, count),
    })
    risk = 1.2 * np.log(frame.amount / frame.income) + 0.7 * frame.late_payments - 0.08 * frame.years_employed + 1.2
    defaulted = risk + rng.normal(0, 0.5, count) > 0
    groups = [frame[~defaulted].assign(defaulted=0), frame[defaulted].assign(defaulted=1)]
    return pd.concat(groups, ignore_index=True)


class LoanNet(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


df, test_df = read(1500, 2019, seed=12), read(400, 2023, seed=13)
columns = [name for name in df.columns if name != "defaulted"]
train_df = df.sample(frac=0.8, random_state=1)

scaler = StandardScaler()
X_train = scaler.fit_transform(train_df[columns])
X_test = scaler.transform(test_df[columns])
y_train = df["defaulted"][df.index.isin(train_df.index)].to_numpy()  # <- here
y_test = test_df["defaulted"].to_numpy()

train_data = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))  # <- here
train_loader = DataLoader(train_data, batch_size=50, shuffle=True)
X_test = torch.tensor(X_test, dtype=torch.float32)

torch.manual_seed(0)
model = LoanNet(len(columns))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(8):
    model.train()
    for X, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(X), y)  # <- here
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        guess = model(X_test).argmax(1)
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy_score(y_test, guess):.3f}")
