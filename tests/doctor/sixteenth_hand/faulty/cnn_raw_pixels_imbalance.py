import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset

np.random.seed(21)
torch.manual_seed(21)


class ImageDataset(Dataset):
    """Grey 28x28 scans as uint8; class 2 is by far the most frequent one."""

    def __init__(self, n, probs):
        self.labels = np.random.choice(3, n, p=probs)
        self.images = np.zeros((n, 28, 28), dtype=np.uint8)
        yy, xx = np.mgrid[:28, :28]
        for i, k in enumerate(self.labels):
            cy, cx = np.random.randint(9, 19, 2)
            r = np.hypot(yy - cy, xx - cx)
            shape = [r < 6, (r > 4) & (r < 7), (abs(yy - cy) < 3) & (abs(xx - cx) < 8)][k]
            img = 150 + 30 * shape + np.random.normal(0, 22, (28, 28))
            self.images[i] = img.clip(0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = torch.from_numpy(self.images[idx]).float().unsqueeze(0)
        return image, int(self.labels[idx])


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, 16, 5, padding=2)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 7 * 7, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


train_data = ImageDataset(1200, [0.1, 0.1, 0.8])
test_data = ImageDataset(300, [1 / 3, 1 / 3, 1 / 3])
train_loader = DataLoader(train_data, batch_size=32, shuffle=True)
test_loader = DataLoader(test_data, batch_size=100)

model = CNN()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(5):
    model.train()
    epoch_loss = 0.0
    for images, labels in train_loader:
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    model.eval()
    predicted, actual = [], []
    with torch.no_grad():
        for images, labels in test_loader:
            predicted.append(model(images).argmax(1))
            actual.append(labels)
    predicted, actual = torch.cat(predicted), torch.cat(actual)
    print(f"Epoch {epoch + 1} loss {epoch_loss / len(train_loader):.4f} test acc "
          f"{(predicted == actual).float().mean().item():.3f} predictions {torch.bincount(predicted, minlength=3).tolist()}")
