import logging
import math
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="[%(asctime)s]-[train.py line:%(lineno)d]: %(message)s")
logger = logging.getLogger("YOLOv4")
TRAIN = {"BATCH_SIZE": 16, "YOLO_EPOCHS": 8, "LR_INIT": 2e-3, "LR_END": 1e-6, "WARMUP_EPOCHS": 1, "IMG": 32, "GRID": 8}


class CosineDecayLR:
    def __init__(self, optimizer, T_max, lr_init, lr_min, warmup):
        self.optimizer, self.T_max, self.lr_max, self.lr_min, self.warmup = optimizer, T_max, lr_init, lr_min, warmup

    def step(self, t):
        if t < self.warmup:
            lr = self.lr_max / self.warmup * (t + 1)
        else:
            T_max = self.T_max - self.warmup
            lr = self.lr_min + 0.5 * (self.lr_max - self.lr_min) * (1 + math.cos((t - self.warmup) / T_max * math.pi))
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = lr


class BoxDataset(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        S = TRAIN["IMG"]
        self.imgs = 0.4 * torch.randn(n, 3, S, S, generator=g)
        self.boxes = torch.zeros(n, 5)
        for i in range(n):
            w, h = torch.randint(6, 14, (2,), generator=g).tolist()
            x, y = torch.randint(0, S - w, (1,), generator=g).item(), torch.randint(0, S - h, (1,), generator=g).item()
            k = torch.randint(0, 3, (1,), generator=g).item()
            self.imgs[i, k, y:y + h, x:x + w] += 1.5
            self.boxes[i] = torch.tensor([x + w / 2, y + h / 2, w, h, k])

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        return self.imgs[i], self.boxes[i]


class TinyYolo(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        conv = lambda i, o, s: nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.1))
        self.body = nn.Sequential(conv(3, c, 2), conv(c, 2 * c, 2), conv(2 * c, 2 * c, 1), conv(2 * c, 2 * c, 1))
        self.head = nn.Conv2d(2 * c, 8, 1)

    def forward(self, x):
        return self.head(self.body(x))


def yolo_loss(p, boxes):
    n, cell = len(boxes), TRAIN["IMG"] / TRAIN["GRID"]
    gx, gy = (boxes[:, 0] / cell).long(), (boxes[:, 1] / cell).long()
    obj = torch.zeros(n, TRAIN["GRID"], TRAIN["GRID"])
    obj[torch.arange(n), gy, gx] = 1
    at = p[torch.arange(n), :, gy, gx]
    want = torch.stack([boxes[:, 0] / cell - gx, boxes[:, 1] / cell - gy, boxes[:, 2] / 10, boxes[:, 3] / 10], dim=1)
    loss_box = nn.functional.smooth_l1_loss(at[:, 1:5], want)
    loss_conf = nn.functional.binary_cross_entropy_with_logits(p[:, 0], obj)
    loss_cls = nn.functional.cross_entropy(at[:, 5:], boxes[:, 4].long())
    return loss_box + loss_conf + loss_cls, loss_box, loss_conf, loss_cls


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hit, cell = 0, TRAIN["IMG"] / TRAIN["GRID"]
    for imgs, boxes in loader:
        p = model(imgs)
        best = p[:, 0].flatten(1).argmax(1)
        gy, gx = best // TRAIN["GRID"], best % TRAIN["GRID"]
        at = p[torch.arange(len(p)), :, gy, gx]
        centre = torch.stack([(gx + at[:, 1]) * cell, (gy + at[:, 2]) * cell], dim=1)
        near = (centre - boxes[:, :2]).norm(dim=1) < 2
        hit += (near & (at[:, 5:].argmax(1) == boxes[:, 4].long())).sum().item()
    return hit / len(loader.dataset)


def main():
    torch.manual_seed(91)
    train_loader = DataLoader(BoxDataset(400, 1), batch_size=TRAIN["BATCH_SIZE"], shuffle=True, drop_last=True)
    val_loader = DataLoader(BoxDataset(120, 2), batch_size=60)
    model, epochs, n = TinyYolo(), TRAIN["YOLO_EPOCHS"], len(train_loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TRAIN["LR_INIT"], weight_decay=5e-4)
    scheduler = CosineDecayLR(optimizer, epochs * n, TRAIN["LR_INIT"], TRAIN["LR_END"], TRAIN["WARMUP_EPOCHS"] * n)
    for epoch in range(epochs):
        model.train()
        for i, (imgs, boxes) in enumerate(train_loader):
            scheduler.step(n * epoch + i)
            loss, box, conf, cls = yolo_loss(model(imgs), boxes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 12 == 0:
                logger.info(
                    "=== Epoch:[{:3}/{}],step:[{:3}/{}],total_loss:{:.4f}|loss_ciou:{:.4f}|loss_conf:{:.4f}|loss_cls:{:.4f}|lr:{:.3f}".format(
                        epoch, epochs, i, n, loss, box, conf, cls, optimizer.param_groups[0]["lr"]))
        logger.info(f"===== Validate ===== found {evaluate(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
