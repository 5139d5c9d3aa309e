import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(0)
torch.manual_seed(0)


class ScenesDataset(Dataset):
    """One object of three kinds in images of different sizes, with its centre."""

    sizes = [(16, 16), (16, 28), (28, 16), (24, 24)]

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        marks = torch.randn(3, 3, 5, 5, generator=torch.Generator().manual_seed(13))
        self.images, self.targets, self.group = [], [], []
        for i in range(n):
            k = i % len(self.sizes)
            h, w = self.sizes[k]
            img = 0.6 * torch.randn(3, h, w, generator=g) - 1.0
            label = torch.randint(0, 3, (1,), generator=g).item()
            y = torch.randint(2, h - 2, (1,), generator=g).item()
            x = torch.randint(2, w - 2, (1,), generator=g).item()
            img[:, y - 2:y + 3, x - 2:x + 3] += 0.55 * marks[label]
            self.images.append(img)
            self.targets.append((label, float(y), float(x)))
            self.group.append(k)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.targets[i]


class GroupedBatchSampler:
    def __init__(self, dataset, batch_size):
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self):
        buckets, batches = {}, []
        for i in random.sample(range(len(self.dataset)), len(self.dataset)):
            bucket = buckets.setdefault(self.dataset.group[i], [])
            bucket.append(i)
            if len(bucket) == self.batch_size:
                batches.append(list(bucket))
                bucket.clear()
        return iter(batches)


def to_image_list(batch):
    images, targets = zip(*batch)
    h, w = max(i.shape[1] for i in images), max(i.shape[2] for i in images)
    batched = torch.zeros(len(images), 3, h, w)
    for img, pad_img in zip(images, batched):
        pad_img[:, :img.shape[1], :img.shape[2]].copy_(img)
    label, y, x = (torch.tensor(v) for v in zip(*targets))
    return batched, label, torch.stack([y, x], dim=1)


class Detector(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, w, 5, padding=2), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1), nn.ReLU())
        self.objectness, self.cls_score = nn.Conv2d(w, 1, 1), nn.Linear(w, 3)

    def forward(self, x):
        feat = self.backbone(x)
        prob = self.objectness(feat).flatten(1).softmax(dim=1).view(x.shape[0], *feat.shape[-2:])
        ys, xs = torch.arange(feat.shape[2]).float(), torch.arange(feat.shape[3]).float()
        centre = torch.stack([(prob.sum(2) * ys).sum(1), (prob.sum(1) * xs).sum(1)], dim=1)
        return self.cls_score((feat * prob[:, None]).sum(dim=(2, 3))), centre


@torch.no_grad()
def inference(model, loader):
    model.eval()
    good, error, n = 0, 0.0, 0
    for images, label, centre in loader:
        scores, where = model(images)
        dist = (where - centre).norm(dim=1)
        good += ((scores.argmax(1) == label) & (dist < 2.0)).sum().item()
        error += dist.sum().item()
        n += len(label)
    return good / n, error / n


def main():
    train_set, val_set = ScenesDataset(512, 1), ScenesDataset(160, 2)
    train_loader = DataLoader(train_set, batch_sampler=GroupedBatchSampler(train_set, 16), collate_fn=to_image_list)
    val_loader = DataLoader(val_set, batch_size=1, shuffle=False, collate_fn=to_image_list)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        model.train()
        for images, label, centre in train_loader:
            scores, where = model(images)
            loss = F.cross_entropy(scores, label) + 0.2 * F.smooth_l1_loss(where, centre)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} found %.3f centre error %.3f px" % inference(model, val_loader))


if __name__ == "__main__":
    main()
