"""A one-stage detector on a grid (after YOLO v1): parcels and letters on a belt."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE, S, CLASSES = 48, 6, 2  # S x S cells; target and prediction: x, y, w, h, objectness, classes
LAMBDA_COORD, LAMBDA_NOOBJ = 5.0, 0.5
EPOCHS, BATCH = 8, 32


def belt(rng):
    img = 0.1 * rng.standard_normal((SIZE, SIZE)) + np.linspace(0, 0.2, SIZE)[None]
    boxes = []
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(0, CLASSES)
        w, h = (rng.integers(8, 14, 2)) if kind == 0 else (rng.integers(12, 18), rng.integers(5, 8))
        x, y = rng.integers(0, SIZE - w), rng.integers(0, SIZE - h)
        img[y : y + h, x : x + w] = 0.7 if kind == 0 else 1.0
        img[y + 1 : y + h - 1, x + 1 : x + w - 1] -= 0.3
        boxes.append(((x + w / 2) / SIZE, (y + h / 2) / SIZE, w / SIZE, h / SIZE, kind))
    return img.astype(np.float32), np.array(boxes, dtype=np.float32)


def encode(boxes):
    target = torch.zeros(S, S, 5 + CLASSES)
    for x, y, w, h, kind in boxes.tolist():
        col, row = min(int(x * S), S - 1), min(int(y * S), S - 1)
        target[row, col, :5] = torch.tensor([x * S - col, y * S - row, w, h, 1.0])
        target[row, col, 5:] = 0.0
        target[row, col, 5 + int(kind)] = 1.0
    return target


class Belt(Dataset):
    def __init__(self, n, seed, train):
        rng = np.random.default_rng(seed)
        self.rows = [belt(rng) for _ in range(n)]
        self.train = train

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        image, boxes = self.rows[i]
        if self.train and random.random() < 0.5:
            image, boxes = image[:, ::-1].copy(), boxes.copy()
        return torch.from_numpy(image)[None], encode(boxes)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1), nn.MaxPool2d(2))
        self.features = nn.Sequential(block(1, 12), block(12, 24), block(24, 48))
        self.head = nn.Sequential(nn.Conv2d(48, 48, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(48, 5 + CLASSES, 1))

    def forward(self, x):
        out = self.head(self.features(x)).permute(0, 2, 3, 1)
        return torch.cat([out[..., :5].sigmoid(), out[..., 5:]], -1)


class YoloLoss(nn.Module):
    def forward(self, pred, target):
        n = pred.shape[0]
        obj = target[..., 4] > 0
        noobj = target[..., 4] == 0
        p, t = pred[obj], target[obj]
        xy = F.mse_loss(p[:, :2], t[:, :2], reduction="sum")
        wh = F.mse_loss(p[:, 2:4].sqrt(), t[:, 2:4].sqrt(), reduction="sum")
        conf = F.mse_loss(p[:, 4], t[:, 4], reduction="sum")
        empty = F.mse_loss(pred[noobj][:, 4], target[noobj][:, 4], reduction="sum")
        kind = F.cross_entropy(p[:, 5:], t[:, 5:].argmax(1), reduction="sum")
        loss = LAMBDA_COORD * (xy + wh) + conf + LAMBDA_NOOBJ * empty + kind
        return loss / n


def iou(a, b):
    """Of boxes given by their centres, widths and heights."""
    a1, a2, b1, b2 = a[:, :2] - a[:, 2:] / 2, a[:, :2] + a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
    side = (torch.minimum(a2, b2) - torch.maximum(a1, b1)).clamp(min=0)
    inter = side.prod(1)
    return inter / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - inter)


@torch.no_grad()
def evaluate(model, loader):
    """Share of objects whose cell finds them (objectness, class and an overlap of a half)."""
    model.eval()
    hits = total = 0
    rows, cols = torch.meshgrid(torch.arange(S), torch.arange(S), indexing="ij")
    cell = torch.stack([cols, rows], -1)
    for image, target in loader:
        pred = model(image)
        obj = target[..., 4] > 0
        box = lambda v: torch.cat([(v[..., :2] + cell) / S, v[..., 2:4]], -1)[obj]
        good = iou(box(pred), box(target)) > 0.5
        good &= pred[obj][:, 4] > 0.4
        good &= pred[obj][:, 5:].argmax(1) == target[obj][:, 5:].argmax(1)
        hits, total = hits + good.sum().item(), total + len(good)
    model.train()
    return hits / total


def main():
    random.seed(9)
    torch.manual_seed(9)
    train, val = DataLoader(Belt(480, 1, True), batch_size=BATCH, shuffle=True), DataLoader(Belt(120, 2, False), batch_size=BATCH)
    model, criterion = Detector(), YoloLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6], gamma=0.2)
    for epoch in range(EPOCHS):
        total = 0.0
        for image, target in train:
            loss = criterion(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 20.0)
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch}  loss {total / len(train):.3f}  found {evaluate(model, val):.3f}")


if __name__ == "__main__":
    main()
