"""Classify little drawn shapes (square, plus, frame) -- follows the structure of the PyTorch quickstart."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"


def draw(kind, size=16):
    img = torch.zeros(size, size)
    r = int(torch.randint(2, 4, ()))
    cy, cx = (int(v) for v in torch.randint(r + 1, size - r - 1, (2,)))
    if kind == 0:  # square
        img[cy - r:cy + r + 1, cx - r:cx + r + 1] = 1.0
    elif kind == 1:  # plus
        img[cy - r:cy + r + 1, cx] = 1.0
        img[cy, cx - r:cx + r + 1] = 1.0
    else:  # frame
        img[cy - r:cy + r + 1, cx - r:cx + r + 1] = 1.0
        img[cy - r + 1:cy + r, cx - r + 1:cx + r] = 0.0
    return img + 0.35 * torch.randn(size, size)


class ShapesDataset(Dataset):
    def __init__(self, n):
        self.labels = torch.arange(n) % 3
        self.images = torch.stack([draw(int(k)) for k in self.labels]).unsqueeze(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        return self.images[idx], self.labels[idx]


training_data = ShapesDataset(900)
test_data = ShapesDataset(300)

batch_size = 64
train_dataloader = DataLoader(training_data, batch_size=batch_size, shuffle=True)
test_dataloader = DataLoader(test_data, batch_size=batch_size)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(96, 32),
            nn.ReLU(),
            nn.Linear(32, 3),
        )

    def forward(self, x):
        x = self.features(x)
        logits = self.classifier(x)
        return logits


model = NeuralNetwork().to(device)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def train(dataloader, model, loss_fn, optimizer):
    size = len(dataloader.dataset)
    model.train()
    for batch, (X, y) in enumerate(dataloader):
        X, y = X.to(device), y.to(device)

        # Compute prediction error
        pred = model(X)
        loss = loss_fn(pred, y)

        # Backpropagation
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        if batch % 5 == 0:
            loss, current = loss.item(), (batch + 1) * len(X)
            print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")


def test(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            X, y = X.to(device), y.to(device)
            pred = model(X)
            test_loss += loss_fn(pred, y).item() * len(X)
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    test_loss /= size
    correct /= size
    print(f"Test Error: \n Accuracy: {(100*correct):>0.1f}%, Avg loss: {test_loss:>8f} \n")


epochs = 7
for t in range(epochs):
    print(f"Epoch {t+1}\n-------------------------------")
    train(train_dataloader, model, loss_fn, optimizer)
    test(test_dataloader, model, loss_fn)
print("Done!")
