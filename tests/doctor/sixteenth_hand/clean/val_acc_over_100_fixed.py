import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

torch.manual_seed(11)
np.random.seed(11)


class SpectraDataset(Dataset):
    """1-d spectra with one of four peak positions."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 4, n)
        grid = np.arange(64)
        centre = 8 + 14 * self.y[:, None] + rng.normal(0, 2, (n, 1))
        self.x = np.exp(-((grid - centre) ** 2) / 18) + rng.normal(0, 0.35, (n, 64))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.tensor(self.x[i], dtype=torch.float32), int(self.y[i])


trainset, valset = SpectraDataset(1000, 0), SpectraDataset(260, 1)
trainloader = DataLoader(trainset, batch_size=50, shuffle=True)
valloader = DataLoader(valset, batch_size=50, shuffle=False)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def validate():
    model.eval()
    correct = 0
    total = 0
    with torch.no_grad():
        for data in valloader:
            inputs, labels = data
            outputs = model(inputs)
            _, predicted = torch.max(outputs, 1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    return 100 * correct / total


for epoch in range(6):
    model.train()
    total_loss = 0.0
    for inputs, labels in trainloader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
    print(f"Epoch {epoch + 1}: train loss {total_loss / len(trainloader):.3f}, "
          f"Validation Accuracy: {validate():.2f}%")
