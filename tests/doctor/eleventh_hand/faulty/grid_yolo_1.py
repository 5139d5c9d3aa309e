"""Boxes around bright blobs: a detector of one cell one box, in the manner of a small YOLO repository."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Hyp:
    grid: int = 6
    classes: int = 3
    image: int = 48
    lr0: float = 3e-3
    momentum: float = 0.937
    epochs: int = 8
    batch: int = 16
    box: float = 2.0
    obj: float = 1.0
    cls: float = 0.7


class Blobs(Dataset):
    def __init__(self, count, hyp, seed):
        g = torch.Generator().manual_seed(seed)
        self.hyp, self.items = hyp, []
        span = torch.arange(hyp.image).float()
        for _ in range(count):
            image = 0.1 * torch.randn(3, hyp.image, hyp.image, generator=g)
            boxes = []
            for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
                c = int(torch.randint(0, 3, (1,), generator=g))
                x, y = (6 + 36 * torch.rand(2, generator=g)).tolist()
                w, h = (6 + 8 * torch.rand(2, generator=g)).tolist()
                inside = ((span[None] - x).abs() < w / 2) & ((span[:, None] - y).abs() < h / 2)
                image[c] += inside.float()
                boxes.append((c, x / hyp.image, y / hyp.image, w / hyp.image, h / hyp.image))
            self.items.append((image, boxes))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        image, boxes = self.items[i]
        s = self.hyp.grid
        target = torch.zeros(s, s, 6)
        for c, x, y, w, h in boxes:
            col, row = int(x * s), int(y * s)
            target[row, col] = torch.tensor([1.0, x * s - col, y * s - row, w, h, c])
        return image, target


class Detector(nn.Module):
    def __init__(self, hyp):
        super().__init__()
        def conv(a, b, s):
            return nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
        self.backbone = nn.Sequential(conv(3, 16, 2), conv(16, 24, 2), conv(24, 32, 2), conv(32, 32, 1))
        self.head = nn.Conv2d(32, 5 + hyp.classes, 1)

    def forward(self, x):
        return self.head(self.backbone(x)).permute(0, 2, 3, 1)


class ComputeLoss:
    def __init__(self, hyp):
        self.hyp = hyp
        self.BCEobj = nn.BCEWithLogitsLoss()
        self.CE = nn.CrossEntropyLoss()

    def __call__(self, p, targets):
        has = targets[..., 0] > 0
        lobj = self.BCEobj(p[..., 0], targets[..., 0])
        pbox = p[..., 1:5][has].sigmoid()
        lbox = nn.functional.smooth_l1_loss(pbox, targets[..., 1:5][has], beta=0.1)
        lcls = self.CE(p[..., 5:][has], targets[..., 5][has].long())
        loss = self.hyp.box * lbox + self.hyp.obj * lobj + self.hyp.cls * lcls
        return loss, torch.stack([lbox, lobj, lcls]).detach()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = truths = guesses = 0
    for images, targets in loader:
        p = model(images)
        found, has = p[..., 0].sigmoid() > 0.4, targets[..., 0] > 0
        right = found & has & (p[..., 5:].argmax(-1) == targets[..., 5].long())
        near = (p[..., 1:5].sigmoid() - targets[..., 1:5]).abs().amax(-1) < 0.25
        hits += (right & near).sum().item()
        truths, guesses = truths + has.sum().item(), guesses + found.sum().item()
    return hits / max(1, guesses), hits / truths


def train(hyp):
    torch.manual_seed(0)
    train_loader = DataLoader(Blobs(320, hyp, 1), hyp.batch, shuffle=True)
    val_loader = DataLoader(Blobs(64, hyp, 2), hyp.batch)
    model = Detector(hyp)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for n, p in model.named_parameters() if n.endswith("bias")]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 5e-4}, {"params": plain, "weight_decay": 0.0}], lr=hyp.lr0)
    compute_loss = ComputeLoss(hyp)
    for epoch in range(hyp.epochs):
        model.train()
        mloss = torch.zeros(3)
        for i, (images, targets) in enumerate(train_loader):
            loss, items = compute_loss(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mloss = (mloss * i + items) / (i + 1)
        precision, recall = evaluate(model, val_loader)
        print(f"{epoch}: box {mloss[0]:.3f} obj {mloss[1]:.3f} cls {mloss[2]:.3f} P {precision:.3f} R {recall:.3f}")


if __name__ == "__main__":
    train(Hyp())
