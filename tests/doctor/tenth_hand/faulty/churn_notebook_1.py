#!/usr/bin/env python
# coding: utf-8
# Customer churn with a small neural network (exported from a notebook)

# In[1]:
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
rng = np.random.default_rng(3)

# In[2]:
# the table
n = 1400
df = pd.DataFrame(
    {
        "tenure": rng.gamma(2.0, 14.0, n),
        "monthly_charges": rng.normal(68, 27, n),
        "support_calls": rng.poisson(1.7, n) + rng.normal(0, 0.05, n),
        "data_used": rng.lognormal(2.2, 0.6, n),
        "contract": rng.choice(["month", "year", "two_years"], n, p=[0.5, 0.3, 0.2]),
    }
)
# the newest quarter of the customers is billed by the new tariff
new = np.arange(n) >= 3 * n // 4
df.loc[new, "monthly_charges"] += 22
df.loc[new, "tenure"] *= 0.6
risk = (
    -0.045 * df.tenure
    + 0.022 * (df.monthly_charges - 68)
    + 0.5 * df.support_calls
    + df.contract.map({"month": 0.9, "year": -0.4, "two_years": -1.3})
)
df["churn"] = (risk + rng.logistic(0, 0.6, n) > 0.1).astype(int)
df.head()

# In[3]:
features = pd.get_dummies(df.drop(columns="churn"), columns=["contract"], dtype=float)
# learn from the older customers, score the newest
X_train, X_test, y_train, y_test = features[~new], features[new], df.churn[~new], df.churn[new]

# In[4]:
scaler = StandardScaler()
X_train = scaler.fit_transform(X_train)
X_test = scaler.fit_transform(X_test)

# In[5]:
train_ds = TensorDataset(
    torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train.values, dtype=torch.float32)
)
test_ds = TensorDataset(torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test.values, dtype=torch.float32))
train_dl = DataLoader(train_ds, batch_size=64, shuffle=True)
test_dl = DataLoader(test_ds, batch_size=64)

# In[6]:
model = nn.Sequential(
    nn.Linear(X_train.shape[1], 32),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(32, 16),
    nn.ReLU(),
    nn.Linear(16, 1),
)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

# In[7]:
history = []
for epoch in range(4):
    model.train()
    for xb, yb in train_dl:
        optimizer.zero_grad()
        loss = criterion(model(xb).squeeze(1), yb)
        loss.backward()
        optimizer.step()

    model.eval()
    total, seen = 0.0, 0
    with torch.no_grad():
        for xb, yb in test_dl:
            val_loss = criterion(model(xb).squeeze(1), yb)
            total += val_loss.item() * len(xb)
            seen += len(xb)
    history.append(total / seen)
    print(f"epoch {epoch}: validation loss {history[-1]:.4f}")

# In[8]:
model.eval()
with torch.no_grad():
    probs = torch.sigmoid(model(test_ds.tensors[0])).squeeze(1).numpy()
print("AUC", roc_auc_score(y_test, probs), "Brier", float(((probs - y_test.values) ** 2).mean()))
