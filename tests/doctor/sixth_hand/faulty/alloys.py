"""Strength of alloys from their composition, as a notebook would have it, cell by cell."""
import numpy as np
import torch
from torch import nn

# %% data
rng = np.random.default_rng(44)
composition = rng.dirichlet(np.ones(6), 800)
hardness = np.array([1.0, 3.0, -2.0, 4.0, 0.5, -1.0])
strength = composition @ hardness + 2.0 * composition[:, 0] * composition[:, 3] + rng.normal(0, 0.05, 800)

features = (composition - composition.mean(0)) / composition.std(0)
target = (strength - strength.mean()) / strength.std()
X_train, X_test = torch.tensor(features[:640]).float(), torch.tensor(features[640:]).float()
y_train, y_test = torch.tensor(target[:640]).float(), torch.tensor(target[640:]).float()


# %% model
class Regressor(nn.Module):
    def __init__(self, inputs=6, hidden=48):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.layers(x)[:, 0]


# %% training
torch.manual_seed(44)
EPOCHS, BATCH = 8, 32
model = Regressor()
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

history = {"train": [], "test": []}
for epoch in range(EPOCHS):
    model.train()
    X_shuffled = X_train[torch.randperm(len(X_train))]  # <- here
    y_shuffled = y_train[torch.randperm(len(y_train))]  # <- here
    running = 0.0
    for start in range(0, len(X_train), BATCH):
        X_batch = X_shuffled[start : start + BATCH]
        y_batch = y_shuffled[start : start + BATCH]
        prediction = model(X_batch)
        loss = loss_fn(prediction, y_batch)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * len(X_batch)
    scheduler.step()
    history["train"].append(running / len(X_train))

    model.eval()
    with torch.no_grad():
        history["test"].append(loss_fn(model(X_test), y_test).item())
    print(f"epoch {epoch}: train {history['train'][-1]:.4f}, test {history['test'][-1]:.4f}")

# %% what was learnt
with torch.no_grad():
    residual = y_test - model(X_test)
r2 = 1 - (residual.pow(2).sum() / (y_test - y_test.mean()).pow(2).sum()).item()
print(f"R2 on the test rows: {r2:.3f}")
