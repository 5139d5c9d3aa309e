"""A segmentation with an auxiliary head, a border that is ignored, and a score over all pixels together."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

IGNORE = 255


class Shapes(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.masks = torch.zeros(n, 20, 20, dtype=torch.long)
        for i in range(n):
            for label in (1, 2):
                r, c = torch.randint(0, 13, (2,), generator=g).tolist()
                self.masks[i, r : r + 7, c : c + 7] = label
        tint = torch.tensor([[0.2, 0.2, 0.2], [0.8, 0.3, 0.2], [0.2, 0.4, 0.9]])
        pixels = tint[self.masks].permute(0, 3, 1, 2) + 0.1 * torch.randn(n, 3, 20, 20, generator=g)
        self.images = (pixels - 0.35) / 0.25
        self.masks[:, 0, :] = self.masks[:, -1, :] = IGNORE

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i]


class Segmenter(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.low = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.high = nn.Sequential(
            nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.classifier = nn.Conv2d(24, classes, 1)
        self.auxiliary = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        size = x.shape[-2:]
        low = self.low(x)
        main = nn.functional.interpolate(self.classifier(self.high(low)), size=size, mode="bilinear")
        if not self.training:
            return {"out": main}
        return {"out": main, "aux": self.auxiliary(low)}


def criterion(outputs, target):
    losses = {k: nn.functional.cross_entropy(v, target, ignore_index=IGNORE) for k, v in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"]


torch.manual_seed(0)
train_loader = DataLoader(Shapes(64, 0), batch_size=16, shuffle=True, drop_last=True)
test_loader = DataLoader(Shapes(20, 1), batch_size=8)
model = Segmenter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 - step / 12) ** 0.9)
for epoch in range(3):
    model.train()
    for image, target in train_loader:
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    confusion = torch.zeros(3, 3)
    with torch.inference_mode():
        for image, target in test_loader:
            predicted = model(image)["out"].argmax(1)
            counted = target != IGNORE
            confusion += torch.bincount(target[counted] * 3 + predicted[counted], minlength=9).view(3, 3)
    print(epoch, (confusion.diag().sum() / confusion.sum()).item())
