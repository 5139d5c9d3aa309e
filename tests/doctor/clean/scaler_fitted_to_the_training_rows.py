"""A regression whose scaler is fitted to the rows that are trained on."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
X = rng.normal(size=(600, 8)).astype("float32") * 3 + 1
y = (X[:, :3].sum(1, keepdims=True) + rng.normal(size=(600, 1)) * 0.1).astype("float32")
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
scaler = StandardScaler()
X_train = scaler.fit_transform(X_train)
X_test = scaler.transform(X_test)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
a, b, c, d = (torch.tensor(v) for v in (X_train, y_train, X_test, y_test))
for epoch in range(8):
    for i in torch.randperm(len(a)).split(32):
        loss = nn.functional.mse_loss(model(a[i]), b[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        print(epoch, nn.functional.mse_loss(model(c), d).item())
