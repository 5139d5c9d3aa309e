import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

np.random.seed(2)
torch.manual_seed(2)


class CTSlices(Dataset):
    def __init__(self, n, size=16):
        self.x = np.random.randn(n, 1, size, size).astype("float32")
        self.y = np.zeros_like(self.x)
        yy, xx = np.mgrid[:size, :size]
        for i in range(n):
            cy, cx = np.random.uniform(4, size - 4, 2)
            disc = ((yy - cy) ** 2 + (xx - cx) ** 2) < np.random.uniform(2, 5)
            self.y[i, 0][disc] = 1
        self.x += 2.2 * self.y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), torch.from_numpy(self.y[i])


class TransNet(nn.Module):
    def __init__(self, dim=32, patch=2, size=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.patch = nn.Conv2d(16, dim, patch, patch)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, dim))
        self.encoder = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.up = nn.ConvTranspose2d(dim, 16, patch, patch)
        self.outc = nn.Sequential(
            nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 1, kernel_size=1),
            nn.ReLU(),
        )

    def forward(self, x):
        s = self.stem(x)
        p = self.patch(s)
        b, c, h, w = p.shape
        t = self.encoder(p.flatten(2).transpose(1, 2) + self.pos)
        t = t.transpose(1, 2).reshape(b, c, h, w)
        return self.outc(torch.cat([s, self.up(t)], dim=1))


train_loader = DataLoader(CTSlices(400), batch_size=20, shuffle=True)
val_loader = DataLoader(CTSlices(100), batch_size=50)
model = TransNet()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(5):
    model.train()
    losses = []
    for x, y in train_loader:
        outputs = model(x)
        loss = criterion(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    model.eval()
    inter = union = area = 0.0
    with torch.no_grad():
        for x, y in val_loader:
            mask = (torch.sigmoid(model(x)) > 0.5).float()
            inter += (mask * y).sum().item()
            union += ((mask + y) > 0).sum().item()
            area += mask.sum().item() + y.sum().item()
    print(f"[{epoch}] train loss {np.mean(losses):.4f} val dice {2 * inter / area:.4f} iou {inter / union:.4f}")
