import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(4)

motions = torch.randn(4, 5, 3, 12, 12)


class CustomImageDataset(Dataset):
    def __init__(self, n):
        self.classes = torch.randint(0, 4, (n,))
        self.clips = 0.4 * motions[self.classes] + torch.randn(n, 5, 3, 12, 12)

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, idx):
        label = torch.zeros(4)
        label[int(self.classes[idx])] = 1.0
        image = self.clips[idx]
        return image, label


class ClipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3),
            nn.Flatten(),
        )
        self.gru = nn.GRU(16 * 4, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, clips):
        b, t = clips.shape[:2]
        feats = self.frame(clips.flatten(0, 1)).view(b, t, -1)
        _, h = self.gru(feats)
        return self.head(h[-1])


train_dataset = CustomImageDataset(600)
test_dataset = CustomImageDataset(200)
train_dataloader = DataLoader(train_dataset, batch_size=20, shuffle=True)
test_dataloader = DataLoader(test_dataset, batch_size=50)

net = ClipNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)


def to_targets(labels, datas):
    return torch.stack(list(labels)).reshape(datas.size(0), -1).float()


for epoch in range(5):
    net.train()
    total = 0.0
    for datas, labels in train_dataloader:
        targets = to_targets(labels, datas)
        optimizer.zero_grad()
        loss = criterion(net(datas), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(datas)

    net.eval()
    hits = 0
    with torch.no_grad():
        for i, (datas, _) in enumerate(test_dataloader):
            truth = test_dataset.classes[i * 50:i * 50 + len(datas)]
            hits += (net(datas).argmax(1) == truth).sum().item()
    print(f"epoch {epoch} train loss {total / len(train_dataset):.4f} test acc {hits / len(test_dataset):.3f}")
