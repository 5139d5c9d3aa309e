"""A minute single-shot detector: up to three buoys (two kinds) on a 32 x 32 sea, 4 x 4 cells with two anchors each."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

IMG, GRID = 32, 4
CELL = IMG // GRID
ANCHORS = torch.tensor([[7.0, 7.0], [11.0, 11.0]])  # width, height in pixels
CLASSES = 2  # 0 is background, then the kinds 1 and 2


def anchor_boxes():
    c = (torch.arange(GRID) + 0.5) * CELL
    cy, cx = torch.meshgrid(c, c, indexing="ij")
    centres = torch.stack([cx, cy], -1).view(-1, 1, 2).expand(-1, len(ANCHORS), 2)
    sizes = ANCHORS.expand(GRID * GRID, -1, 2)
    return torch.cat([centres, sizes], -1).reshape(-1, 4)  # cx, cy, w, h; cell by cell, anchor by anchor


PRIORS = anchor_boxes()


def to_corners(b):
    return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)


def iou(a, b):
    """a: (n, 4), b: (m, 4) as corners"""
    lo = torch.max(a[:, None, :2], b[None, :, :2])
    hi = torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (hi - lo).clamp(min=0).prod(-1)
    area = lambda x: (x[:, 2:] - x[:, :2]).prod(-1)
    return inter / (area(a)[:, None] + area(b)[None] - inter)


def encode(boxes, priors):
    return torch.cat([(boxes[:, :2] - priors[:, :2]) / priors[:, 2:], (boxes[:, 2:] / priors[:, 2:]).log()], -1)


def decode(offsets, priors):
    return torch.cat([offsets[..., :2] * priors[:, 2:] + priors[:, :2], offsets[..., 2:].exp() * priors[:, 2:]], -1)


def match(boxes, labels, threshold=0.4):
    overlap = iou(to_corners(PRIORS), to_corners(boxes))
    best, which = overlap.max(dim=1)
    best_prior = overlap.argmax(dim=0)
    best[best_prior] = 1.0
    which[best_prior] = torch.arange(len(boxes))
    cls = labels[which].clone()
    cls[best < threshold] = 0
    return encode(boxes[which], PRIORS), cls


class Sea(Dataset):
    def __init__(self, n, seed, augment=False):
        gen = torch.Generator().manual_seed(seed)
        self.items = [self.scene(gen) for _ in range(n)]
        self.augment = augment

    @staticmethod
    def scene(gen):
        img = 0.2 * torch.randn(3, IMG, IMG, generator=gen)
        boxes, labels = [], []
        for _ in range(int(torch.randint(1, 4, (), generator=gen))):
            w = int(torch.randint(6, 13, (), generator=gen))
            x, y = (int(v) for v in torch.randint(0, IMG - w, (2,), generator=gen))
            kind = int(torch.randint(1, CLASSES + 1, (), generator=gen))
            img[:, y:y + w, x:x + w] = -0.5
            img[0 if kind == 1 else 2, y:y + w, x:x + w] = 1.0
            boxes.append([x + w / 2, y + w / 2, w, w])
            labels.append(kind)
        return img, torch.tensor(boxes, dtype=torch.float), torch.tensor(labels)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        img, boxes, labels = self.items[i]
        if self.augment and torch.rand(()) < 0.5:
            img, boxes = img.flip(-1), boxes.clone()
            boxes[:, 0] = IMG - boxes[:, 0]
        loc, cls = match(boxes, labels)
        return img, loc, cls


class SSD(nn.Module):
    def __init__(self, a=len(ANCHORS)):
        super().__init__()
        layers, c = [], 3
        for out in (16, 24, 32):
            layers += [nn.Conv2d(c, out, 3, stride=2, padding=1), nn.ReLU(inplace=True)]
            c = out
        self.backbone = nn.Sequential(*layers)
        self.loc = nn.Conv2d(c, a * 4, 3, padding=1)
        self.conf = nn.Conv2d(c, a * (CLASSES + 1), 3, padding=1)

    def forward(self, x):
        f = self.backbone(x)
        loc = self.loc(f).permute(0, 2, 3, 1).reshape(len(x), -1, 4)
        conf = self.conf(f).permute(0, 2, 3, 1).reshape(len(x), -1, CLASSES + 1)
        return loc, conf


def multibox_loss(loc, conf, loc_t, cls_t):
    pos = cls_t > 0
    n = pos.sum().clamp(min=1)
    loc_loss = F.smooth_l1_loss(loc[pos], loc_t[pos], reduction="sum")
    ce = F.cross_entropy(conf.transpose(1, 2), cls_t, reduction="none")
    negatives = ce.detach().masked_fill(pos, 0).sort(dim=1, descending=True)[1].argsort(dim=1)
    hard = negatives < 3 * pos.sum(dim=1, keepdim=True)
    return (loc_loss + ce[pos | hard].sum()) / n


def recall(net, ds):
    """share of true boxes hit by a box of the right kind with IoU of a half or more"""
    net.eval()
    hit = total = 0
    with torch.no_grad():
        for img, boxes, labels in ds.items:
            loc, conf = net(img[None])
            score, kind = conf[0].softmax(-1).max(-1)
            found = (kind > 0) & (score > 0.5)
            pred = to_corners(decode(loc[0], PRIORS))[found]
            if len(pred):
                good = (iou(pred, to_corners(boxes)) >= 0.5) & (kind[found][:, None] == labels[None])
                hit += good.any(0).sum().item()
            total += len(boxes)
    return hit / total


if __name__ == "__main__":
    torch.manual_seed(12)
    train_ds, val_ds = Sea(480, seed=1, augment=True), Sea(80, seed=2)
    loader = DataLoader(train_ds, batch_size=32, shuffle=True)
    net = SSD()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for epoch in range(8):
        net.train()
        running, batches = 0.0, 0
        for img, loc_t, cls_t in loader:
            loss = multibox_loss(*net(img), loc_t, cls_t)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
            batches += 1
        print(f"epoch {epoch}  loss {running / batches:.3f}  recall {recall(net, val_ds):.3f}")
