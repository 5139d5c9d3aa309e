import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)

prototypes = torch.rand(10, 28 * 28)


def make_digits(n):
    y = torch.randint(0, 10, (n,))
    x = (prototypes[y] + 1.5 * torch.randn(n, 28 * 28)).clamp(0, 1)
    return x, y


x_train, y_train = make_digits(3000)
x_test, y_test = make_digits(800)
mean, std = x_train.mean(), x_train.std()
x_train, x_test = (x_train - mean) / std, (x_test - mean) / std

train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=60, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=200)


class NeuralNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(28 * 28, 128)
        self.fc2 = nn.Linear(128, 64)
        self.fc3 = nn.Linear(64, 32)
        self.fc4 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        return self.fc4(x)


model = NeuralNet()
loss_func = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.3)

for epoch in range(6):
    model.train()
    total = 0.0
    for x, y in train_loader:
        out = model(x)
        loss = loss_func(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)

    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in test_loader:
            hits += (model(x).argmax(1) == y).sum().item()
    print(f"epoch {epoch} loss = {total / len(y_train)} test acc = {hits / len(y_test):.4f}")
