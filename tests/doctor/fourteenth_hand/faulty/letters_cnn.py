import copy
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)

letters = torch.rand(26, 1, 14, 14)


def make(n):
    y = torch.randint(0, 26, (n,))
    x = (letters[y] + 0.5 * torch.randn(n, 1, 14, 14)).clamp(0, 1)
    return TensorDataset((x - 0.5) / 0.37, y)


train_loader = DataLoader(make(2600), batch_size=50, shuffle=True)
valid_loader = DataLoader(make(500), batch_size=100)
test_loader = DataLoader(make(500), batch_size=100)


def cnn_model():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, 1, 2),
        nn.Dropout(p=0.2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 100),
        nn.Dropout(p=0.2),
        nn.ReLU(),
        nn.Linear(100, 26),
    )
    return model


def validate(model, data):
    total = 0
    correct = 0
    with torch.no_grad():
        for images, labels in data:
            x = model(images)
            value, pred = torch.max(x, 1)
            total += x.size(0)
            correct += torch.sum(pred == labels).item()
    return correct * 100.0 / total


def train(numb_epoch=5, lr=2e-3, device="cpu"):
    cnn = cnn_model().to(device)
    cec = nn.CrossEntropyLoss()
    optimizer = optim.Adam(cnn.parameters(), lr=lr)
    max_accuracy = 0
    best_model = cnn
    for epoch in range(numb_epoch):
        t0 = time.time()
        cnn.train()
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = cec(cnn(images), labels)
            loss.backward()
            optimizer.step()
        accuracy = validate(cnn, valid_loader)
        if accuracy > max_accuracy:
            best_model = copy.deepcopy(cnn)
            max_accuracy = accuracy
            print("Saving Best Model with Accuracy: ", accuracy)
        print("Epoch:", epoch + 1, "Accuracy:", accuracy, "% in", round(time.time() - t0, 1), "s")
    return best_model


best = train()
print("test accuracy, three times:", [validate(best, test_loader) for _ in range(3)])
