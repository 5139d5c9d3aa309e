import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

np.random.seed(1)
torch.manual_seed(1)

CLASSES = ["bottle", "cup", "fork", "knife"]
patterns = np.random.randn(4, 3, 16, 16).astype("float32")


class Photos(Dataset):
    def __init__(self, counts):
        self.labels = np.repeat(np.arange(4), counts)
        noise = np.random.randn(len(self.labels), 3, 16, 16).astype("float32")
        self.images = 0.22 * patterns[self.labels] + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), int(self.labels[i])


train_set = Photos([1800, 70, 60, 50])
held_out = Photos([150, 150, 150, 150])
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
test_loader = DataLoader(held_out, batch_size=100)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(32 * 4 * 4, len(CLASSES))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


model = CNN()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(5):
    model.train()
    correct = 0
    for images, labels in train_loader:
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        correct += (outputs.argmax(1) == labels).sum().item()
    print(f"Epoch {epoch + 1}: train accuracy {correct / len(train_set):.3f}")

model.eval()
predictions, truth = [], []
with torch.no_grad():
    for images, labels in test_loader:
        predictions.append(model(images).argmax(1))
        truth.append(labels)
predictions, truth = torch.cat(predictions), torch.cat(truth)
print("predicted labels:", dict(zip(CLASSES, torch.bincount(predictions, minlength=4).tolist())))
for k, name in enumerate(CLASSES):
    print(f"recall {name}: {(predictions[truth == k] == k).float().mean():.3f}")
