"""Pictures and their captions are brought together, in the manner of CLIP."""
import math
import random

import torch
from torch import nn
from torch.nn import functional as F

COLOURS, PLACES, SIZES = ["red", "green", "blue"], ["top", "middle", "bottom"], ["tiny", "small", "big"]
WORDS = {word: number for number, word in enumerate([*COLOURS, *PLACES, *SIZES])}


class ImageTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(32 * 16, dim)
        )

    def forward(self, images):
        return self.net(images)


class TextTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 32)
        self.project = nn.Sequential(nn.Linear(96, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, ids):
        return self.project(self.embedding(ids).flatten(1))


class CLIP(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.visual, self.text = ImageTower(dim), TextTower(dim)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))  # <- here

    def forward(self, images, ids):
        image_features = F.normalize(self.visual(images), dim=-1)
        text_features = F.normalize(self.text(ids), dim=-1)
        logit_scale = self.logit_scale.exp().item()  # <- here
        return logit_scale * image_features @ text_features.t()  # <- here


class ContrastiveLoss(nn.Module):
    def forward(self, logits):
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def draw(count, seed):
    rng = random.Random(seed)
    images, ids = 0.3 * torch.randn(count, 3, 16, 16), []
    for image in images:
        colour, place, size = rng.randrange(3), rng.randrange(3), rng.randrange(3)
        row, column = 5 * place, rng.randrange(0, 16 - 5)
        image[colour, row : row + 2 + size, column : column + 2 + size] += 2.0
        ids.append([colour, 3 + place, 6 + size])
    return images, torch.tensor(ids)


def main():
    torch.manual_seed(21)
    images, ids = draw(864, seed=1)
    model, criterion = CLIP(), ContrastiveLoss()
    decayed = [p for name, p in model.named_parameters() if p.ndim >= 2]
    plain = [p for name, p in model.named_parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=2e-3)
    for epoch in range(5):
        for rows in torch.randperm(len(images)).split(27):
            loss = criterion(model(images[rows], ids[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}, scale {model.logit_scale.exp().item():.3f}")


if __name__ == "__main__":
    main()
