import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(41)


def make_slices(n, size=16):
    image = torch.randn(n, 1, size, size)
    mask = torch.zeros(n, 1, size, size)
    for i in range(n):
        if torch.rand(1).item() < 0.3:
            r, c = torch.randint(0, size - 3, (2,)).tolist()
            mask[i, 0, r:r + 3, c:c + 3] = 1
    return image + 2.4 * mask, mask


train_set, test_set = TensorDataset(*make_slices(440)), TensorDataset(*make_slices(200))
train_loader = DataLoader(train_set, batch_size=20, shuffle=True)
test_loader = DataLoader(test_set, batch_size=50)


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(o, o, 3, padding=1), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = conv(1, 12), conv(12, 24)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.merge = conv(24, 12)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.up(self.down2(self.pool(a)))
        return self.out(self.merge(torch.cat([a, b], dim=1)))


class DiceLoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits, target):
        p = torch.sigmoid(logits).flatten(1)
        t = target.flatten(1)
        inter = (p * t).sum(1)
        return (1 - (2 * inter + self.smooth) / (p.sum(1) + t.sum(1) + self.smooth)).mean()


model = UNet()
dice = DiceLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(7):
    model.train()
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        logits = model(x)
        loss = dice(logits, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)

    model.eval()
    inter = pred = true = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            p = (model(x) > 0).float()
            inter += (p * y).sum().item()
            pred += p.sum().item()
            true += y.sum().item()
    print(f"epoch {epoch} loss {total / len(train_set):.4f} test dice {2 * inter / (pred + true):.3f} pixels marked {int(pred)} of {int(true)}")
