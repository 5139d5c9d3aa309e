"""One-stage detector with a grid of anchors on drawn shapes: classes by cross-entropy, boxes by smooth L1."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

IMAGE, GRID, ANCHOR = 32, 4, 12.0
NAMES = ["background", "square", "disc"]


class Shapes(Dataset):
    def __init__(self, count, seed, augment):
        rng = random.Random(seed)
        self.items = []
        for number in range(count):
            noise = torch.rand(3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(seed * 10000 + number)) * 0.3
            label = rng.choice([1, 2])
            size = rng.randint(8, 15)
            x0, y0 = rng.randint(0, IMAGE - size), rng.randint(0, IMAGE - size)
            ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
            middle = (size - 1) / 2
            inside = torch.ones(size, size) if label == 1 else ((xs - middle) ** 2 + (ys - middle) ** 2 <= middle**2)
            noise[:, y0 : y0 + size, x0 : x0 + size] += 0.7 * inside.float()
            self.items.append((noise, torch.tensor([x0, y0, x0 + size, y0 + size], dtype=torch.float32), label))
        self.augment = augment

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, box, label = self.items[index]
        image = (image - 0.25) / 0.25
        if self.augment and random.random() < 0.5:
            image = image.flip(-1)
            box = torch.stack([IMAGE - box[2], box[1], IMAGE - box[0], box[3]])
        if self.augment:
            image = image * random.uniform(0.7, 1.3) + random.uniform(-0.2, 0.2)
        return image, box, label


def centers():
    step = IMAGE / GRID
    ys, xs = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    return torch.stack([(xs + 0.5) * step, (ys + 0.5) * step], dim=-1).view(-1, 2)


def encode(boxes, labels):
    """The cell that holds a box's middle is positive. Gives classes (b, a) and offsets (b, a, 4)."""
    anchors = centers()
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    size = boxes[:, 2:] - boxes[:, :2]
    nearest = (anchors[None] - middle[:, None]).pow(2).sum(-1).argmin(1)
    classes = torch.zeros(len(boxes), len(anchors), dtype=torch.long)
    classes[torch.arange(len(boxes)), nearest] = labels
    offsets = torch.cat([(middle[:, None] - anchors[None]) / ANCHOR, (size / ANCHOR).log()[:, None].expand(-1, len(anchors), -1)], -1)
    return classes, offsets


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [3, 16, 32, 64]
        self.backbone = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in zip(chans, chans[1:])
            ]
        )
        self.cls = nn.Conv2d(64, len(NAMES), 3, padding=1)
        self.reg = nn.Conv2d(64, 4, 3, padding=1)

    def forward(self, x):
        f = self.backbone(x)
        return self.cls(f).flatten(2).transpose(1, 2), self.reg(f).flatten(2).transpose(1, 2)


class MultiBoxLoss(nn.Module):
    def forward(self, scores, offsets, classes, targets):
        positive = classes > 0
        loss_box = F.smooth_l1_loss(offsets[positive], targets[positive], reduction="sum") / (4 * positive.sum())
        loss_cls = F.cross_entropy(scores.flatten(0, 1), classes.flatten(), weight=torch.tensor([0.3, 1.0, 1.0]))
        return loss_cls, loss_box


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits, total = 0, 0
    for images, boxes, labels in loader:
        classes, _ = encode(boxes, labels)
        scores, _ = model(images)
        best = scores.softmax(-1)[..., 1:].amax(-1).argmax(1)
        rows = torch.arange(len(best))
        named = scores[rows, best, 1:].argmax(-1) + 1
        hits += (named == classes[rows, best]).sum().item()
        total += len(best)
    return hits / total


def main():
    random.seed(4)
    torch.manual_seed(4)
    train_loader = DataLoader(Shapes(384, 1, augment=True), batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(Shapes(96, 2, augment=False), batch_size=32)
    model, criterion = Detector(), MultiBoxLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(3):
        model.train()
        for images, boxes, labels in train_loader:
            classes, targets = encode(boxes, labels)
            scores, offsets = model(images)
            loss_cls, loss_box = criterion(scores, offsets, classes, targets)
            loss = loss_cls + loss_box
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} cls {loss_cls.item():.3f} box {loss_box.item():.3f} hits {evaluate(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
