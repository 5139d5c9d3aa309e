"""Custom detection data set and a single-level anchor head, after the mmdet recipes."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMG, STRIDE, NUM_CLASSES = 32, 4, 3
torch.manual_seed(0)


class MyDataset(Dataset):
    """Reads an annotation list: one line 'x y w h label' for each image."""

    CLASSES = ("bright", "striped", "checked")

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.imgs, self.annotations = [], []
        for _ in range(n):
            label = int(rng.integers(0, NUM_CLASSES))
            w, h = rng.integers(8, 17, 2)
            x, y = rng.integers(0, IMG - w + 1), rng.integers(0, IMG - h + 1)
            img = rng.normal(0, 0.2, (IMG, IMG))
            yy, xx = np.mgrid[0:h, 0:w]
            patch = [np.ones((h, w)), 2.0 * (yy // 2 % 2), 2.0 * ((yy // 2 + xx // 2) % 2)][label]
            img[y:y + h, x:x + w] += patch
            self.imgs.append(img.astype(np.float32))
            self.annotations.append(f"{x} {y} {w} {h} {label}")

    def __len__(self):
        return len(self.imgs)

    def get_ann_info(self, idx):
        x, y, w, h, label = [int(v) for v in self.annotations[idx].split()]
        return np.array([x, y, w, h], dtype=np.float32), label

    def __getitem__(self, idx):
        bbox, label = self.get_ann_info(idx)
        return torch.from_numpy(self.imgs[idx])[None], torch.from_numpy(bbox), label


def grid_anchors(size=12.0):
    c = (torch.arange(IMG // STRIDE) + 0.5) * STRIDE
    cy, cx = torch.meshgrid(c, c, indexing="ij")
    center = torch.stack([cx.flatten(), cy.flatten()], dim=1)
    return torch.cat([center - size / 2, center + size / 2], dim=1)


def bbox2delta(proposals, gt):
    pxy, gxy = (proposals[..., :2] + proposals[..., 2:]) / 2, (gt[..., :2] + gt[..., 2:]) / 2
    pwh, gwh = proposals[..., 2:] - proposals[..., :2], gt[..., 2:] - gt[..., :2]
    return torch.cat([(gxy - pxy) / pwh, torch.log(gwh / pwh)], dim=-1)


def delta2bbox(proposals, deltas):
    pxy = (proposals[..., :2] + proposals[..., 2:]) / 2
    pwh = proposals[..., 2:] - proposals[..., :2]
    gxy, gwh = pxy + deltas[..., :2] * pwh, pwh * deltas[..., 2:].clamp(max=4.0).exp()
    return torch.cat([gxy - gwh / 2, gxy + gwh / 2], dim=-1)


def bbox_overlaps(a, b):
    inter = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    area = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1)
    return inter / (area - inter)


class SingleStageDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                                      nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU())
        self.cls_head = nn.Conv2d(32, NUM_CLASSES + 1, 1)
        self.reg_head = nn.Conv2d(32, 4, 1)
        self.register_buffer("anchors", grid_anchors())

    def forward(self, img):
        x = self.backbone(img)
        return self.cls_head(x).flatten(2).transpose(1, 2), self.reg_head(x).flatten(2).transpose(1, 2)

    def loss(self, img, gt_bboxes, gt_labels):
        cls, reg = self(img)
        centers = (self.anchors[:, :2] + self.anchors[:, 2:]) / 2
        distance = (centers[None] - ((gt_bboxes[:, :2] + gt_bboxes[:, 2:]) / 2)[:, None]).norm(dim=-1)
        nearest = distance.topk(4, largest=False).indices
        target = torch.full(cls.shape[:2], NUM_CLASSES)
        target.scatter_(1, nearest, gt_labels[:, None].expand(-1, 4))
        loss_cls = F.cross_entropy(cls.transpose(1, 2), target, reduction="sum") / nearest.numel()
        pos_reg = reg.gather(1, nearest[..., None].expand(-1, -1, 4))
        loss_bbox = F.smooth_l1_loss(pos_reg, bbox2delta(self.anchors[nearest], gt_bboxes[:, None].expand(-1, 4, -1)))
        return {"loss_cls": loss_cls, "loss_bbox": loss_bbox}

    def simple_test(self, img):
        cls, reg = self(img)
        scores, labels = cls.softmax(-1)[..., :NUM_CLASSES].max(-1)
        best = scores.argmax(1)
        rows = torch.arange(len(img))
        return delta2bbox(self.anchors[best], reg[rows, best]), labels[rows, best]


def evaluate(model, loader):
    model.eval()
    ious, hits = [], []
    with torch.no_grad():
        for img, bbox, label in loader:
            pred, cls = model.simple_test(img)
            ious.append(bbox_overlaps(pred, bbox))
            hits.append((cls == label).float())
    return torch.cat(ious).mean().item(), torch.cat(hits).mean().item()


if __name__ == "__main__":
    train_loader = DataLoader(MyDataset(800, 1), batch_size=16, shuffle=True)
    val_loader = DataLoader(MyDataset(200, 2), batch_size=50)
    model = SingleStageDetector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 7], gamma=0.3)
    for epoch in range(8):
        model.train()
        sums = {"loss_cls": 0.0, "loss_bbox": 0.0}
        for img, bbox, label in train_loader:
            losses = model.loss(img, bbox, label)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            for k, v in losses.items():
                sums[k] += v.item() * len(img)
        lr_scheduler.step()
        iou, acc = evaluate(model, val_loader)
        print(f"Epoch [{epoch + 1}] " + ", ".join(f"{k}: {v / 800:.4f}" for k, v in sums.items())
              + f", val IoU: {iou:.3f}, val acc: {acc:.3f}")
