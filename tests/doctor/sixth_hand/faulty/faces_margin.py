"""Embeddings of faces by an angular margin: a network, and above it a layer with one direction for each person."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ArcMargin(nn.Module):
    """cos(angle + margin) for the right person, cos(angle) for all others, times a scale."""

    def __init__(self, width, people, scale=16.0, margin=0.2):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(people, width))
        nn.init.xavier_uniform_(self.weight)
        self.scale, self.cos, self.sin = scale, math.cos(margin), math.sin(margin)

    def forward(self, embeddings, people):
        cosine = F.linear(F.normalize(embeddings), F.normalize(self.weight))
        sine = (1 - cosine.pow(2)).clamp(min=1e-6).sqrt()
        shifted = cosine * self.cos - sine * self.sin
        right = F.one_hot(people, cosine.shape[1]).bool()
        return F.cross_entropy(self.scale * torch.where(right, shifted, cosine), people)


class Backbone(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.PReLU(),
                                  nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.PReLU())
        self.project = nn.Linear(32 * 16, width)

    def forward(self, x):
        return self.project(self.conv(x).flatten(1))


def faces(people, each, seed):
    generator = torch.Generator().manual_seed(seed)
    looks = torch.randn(people, 1, 16, 16, generator=torch.Generator().manual_seed(77))
    who = torch.arange(people).repeat_interleave(each)
    return looks[who] + 0.9 * torch.randn(len(who), 1, 16, 16, generator=generator), who


@torch.no_grad()
def retrieval(backbone, gallery, queries):
    backbone.eval()
    (known, names), (asked, truth) = gallery, queries
    similarity = F.normalize(backbone(asked)) @ F.normalize(backbone(known)).T
    return (names[similarity.argmax(1)] == truth).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(7)
    train = DataLoader(TensorDataset(*faces(args.people, 16, 1)), batch_size=48, shuffle=True)
    backbone = Backbone()
    loss_function = ArcMargin(32, args.people)
    optimizer = torch.optim.SGD(backbone.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)  # <- here
    for epoch in range(args.epochs):
        backbone.train()
        for images, who in train:
            loss = loss_function(backbone(images), who)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = retrieval(backbone, faces(args.people, 2, 2), faces(args.people, 2, 3))
        print(f"epoch {epoch}: loss {loss.item():.3f}, retrieved {found:.3f}")


if __name__ == "__main__":
    main()
