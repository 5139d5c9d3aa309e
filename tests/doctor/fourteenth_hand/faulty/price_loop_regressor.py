import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(10)
torch.manual_seed(10)

n = 800
area = rng.uniform(40, 200, n)
rooms = rng.integers(1, 7, n)
age = rng.uniform(0, 80, n)
centre = rng.uniform(0, 25, n)
price = 2.1 * area + 15 * rooms - 0.8 * age - 6 * np.log1p(centre) * 4 + rng.normal(0, 12, n)

features = np.stack([area, rooms, age, centre], axis=1)
split = int(0.8 * n)
fm, fs = features[:split].mean(0), features[:split].std(0)
pm, ps = price[:split].mean(), price[:split].std()
X = torch.tensor((features - fm) / fs, dtype=torch.float32)
Y = torch.tensor((price - pm) / ps, dtype=torch.float32).view(-1, 1)
X_train, Y_train, X_test, Y_test = X[:split], Y[:split], X[split:], Y[split:]


class HousePriceModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(4, 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 1),
        )

    def forward(self, x):
        return self.network(x)


model = HousePriceModel()
loss_fn = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

num_epochs = 200
for epoch in range(num_epochs):
    model.train()
    predictions = model(X_train)
    loss = loss_fn(predictions, Y_train)
    loss.backward()
    optimizer.step()

    if (epoch + 1) % 20 == 0:
        model.eval()
        with torch.inference_mode():
            test_loss = loss_fn(model(X_test), Y_test)
        print(f"Epoch {epoch + 1:3d}/{num_epochs}  train {loss.item():.4f}  test {test_loss.item():.4f}")
