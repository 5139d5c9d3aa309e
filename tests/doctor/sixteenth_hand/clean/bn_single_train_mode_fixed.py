import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)

model = nn.Sequential(
    nn.Linear(10, 20),
    nn.BatchNorm1d(20),
    nn.ReLU(),
    nn.Dropout(0.5),
    nn.Linear(20, 1),
)

teacher = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
with torch.no_grad():
    x = torch.randn(1000, 10)
    y = 3 * teacher(x)
    y = (y - y[:800].mean()) / y[:800].std() + 0.05 * torch.randn(1000, 1)
train_loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=32, shuffle=True)

optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.MSELoss()

for epoch in range(8):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

input_batch = x[800:]
model.eval()
with torch.no_grad():
    output_batch = model(input_batch)
    output_small = torch.cat([model(pair) for pair in input_batch.split(2)])
print(f"mse as one batch  {criterion(output_batch, y[800:]).item():.4f}")
print(f"mse pair by pair  {criterion(output_small, y[800:]).item():.4f}")
print(f"largest difference {(output_batch - output_small).abs().max().item():.4f}")
