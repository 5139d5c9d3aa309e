"""Pictures and captions in one space: a small CLIP with a learned temperature (config class and a trainer)."""
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CFG = SimpleNamespace(
    batch_size=48, epochs=10, image_lr=2e-3, text_lr=2e-3, head_lr=2e-3, weight_decay=1e-3,
    projection_dim=32, shapes=4, colors=3, places=4, seed=12,
)


def build_pairs(count, seed):
    """The caption names colour, shape and quarter in an order of its own; 0 is padding."""
    g = torch.Generator().manual_seed(seed)
    color = torch.randint(0, CFG.colors, (count,), generator=g)
    shape = torch.randint(0, CFG.shapes, (count,), generator=g)
    place = torch.randint(0, CFG.places, (count,), generator=g)
    images = 0.2 * torch.randn(count, 3, 16, 16, generator=g)
    stamps = (torch.rand(CFG.shapes, 6, 6, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    captions = torch.zeros(count, 5, dtype=torch.long)
    for i in range(count):
        top, left = 8 * (int(place[i]) // 2) + 1, 8 * (int(place[i]) % 2) + 1
        images[i, color[i], top : top + 6, left : left + 6] += stamps[shape[i]]
        words = torch.stack([1 + color[i], 4 + shape[i], 8 + place[i]])
        words = words[torch.randperm(3, generator=g)]
        filler = 12 + torch.randint(0, 3, (int(torch.randint(0, 3, (1,), generator=g)),), generator=g)
        words = torch.cat([words, filler])
        captions[i, : len(words)] = words
    return TensorDataset(images, captions)


class ImageEncoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, width, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(16 * width, 64)
        )

    def forward(self, x):
        return self.net(x)


class TextEncoder(nn.Module):
    def __init__(self, vocab=15, width=48):
        super().__init__()
        self.table = nn.Embedding(vocab, width, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, tokens):
        mask = (tokens != 0).unsqueeze(-1)
        pooled = (self.table(tokens) * mask).sum(1) / mask.sum(1)
        return self.mlp(pooled)


class CLIPModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.image_encoder, self.text_encoder = ImageEncoder(), TextEncoder()
        self.image_projection = nn.Linear(64, CFG.projection_dim)
        self.text_projection = nn.Linear(64, CFG.projection_dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.5)))

    def embed(self, images, captions):
        image_features = self.image_projection(self.image_encoder(images))
        text_features = self.text_projection(self.text_encoder(captions))
        image_features = image_features / image_features.norm(dim=1, keepdim=True)
        text_features = text_features / text_features.norm(dim=1, keepdim=True)
        return image_features, text_features

    def forward(self, images, captions):
        image_features, text_features = self.embed(images, captions)
        logits = self.logit_scale.exp() * image_features @ text_features.t()
        targets = torch.arange(len(images))
        return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.t(), targets)) / 2


def recall(model, data):
    model.eval()
    images, captions = data.tensors
    with torch.no_grad():
        a, b = model.embed(images, captions)
    best = (a @ b.t()).argmax(1)
    same = captions[best].sort(1).values[:, -3:] == captions.sort(1).values[:, -3:]
    core = lambda c: torch.stack([((c >= lo) & (c < hi)).mul(c).amax(1) for lo, hi in ((1, 4), (4, 8), (8, 12))], 1)
    return (core(captions[best]) == core(captions)).all(1).float().mean().item()


def main():
    torch.manual_seed(CFG.seed)
    train, valid = build_pairs(1200, 1), build_pairs(200, 2)
    loader = DataLoader(train, CFG.batch_size, shuffle=True, drop_last=True)
    model = CLIPModel()
    params = [
        {"params": model.image_encoder.parameters(), "lr": CFG.image_lr},
        {"params": model.text_encoder.parameters(), "lr": CFG.text_lr},
        {"params": [*model.image_projection.parameters(), *model.text_projection.parameters()], "lr": CFG.head_lr},
    ]
    optimizer = torch.optim.AdamW(params, weight_decay=CFG.weight_decay)
    for epoch in range(CFG.epochs):
        model.train()
        total = 0.0
        for images, captions in loader:
            loss = model(images, captions)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"Epoch: {epoch + 1} loss {total / len(loader):.4f} scale {model.logit_scale.exp().item():.2f} first caption fits {recall(model, valid):.3f}")


if __name__ == "__main__":
    main()
