"""Batch-hard triplets for re-identification; batches of P people with K pictures each."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

PEOPLE, PER_PERSON = 24, 16


class PKSampler(Sampler):
    """Each batch holds ``p`` people, and ``k`` pictures of each."""

    def __init__(self, labels, p, k, batches):
        self.groups = {}
        for index, label in enumerate(labels.tolist()):
            self.groups.setdefault(label, []).append(index)
        self.p, self.k, self.batches = p, k, batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            people = random.sample(sorted(self.groups), self.p)
            yield [index for person in people for index in random.sample(self.groups[person], self.k)]


def faces(seed):
    gen = torch.Generator().manual_seed(seed)
    identity = torch.randn(PEOPLE, 8, generator=gen)
    decoder = torch.randn(8, 3 * 12 * 12, generator=torch.Generator().manual_seed(0)) / 3
    labels = torch.arange(PEOPLE).repeat_interleave(PER_PERSON)
    codes = identity[labels] + 0.25 * torch.randn(len(labels), 8, generator=gen)
    images = torch.tanh(codes @ decoder).view(-1, 3, 12, 12)
    light = 0.5 * torch.randn(len(labels), 3, 1, 1, generator=gen)
    return images + light + 0.3 * torch.randn(images.shape, generator=gen), labels


class EmbeddingNet(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.ReLU()
        )
        self.fc = nn.Linear(48 * 9, dim)

    def forward(self, x):
        return F.normalize(self.fc(self.features(x).flatten(1)), dim=1)


def pairwise(e):
    return (2 - 2 * e @ e.T).clamp(min=1e-6).sqrt()


def batch_hard_triplet(embeddings, labels, margin=0.3):
    distance = pairwise(embeddings)
    same = labels[:, None] == labels[None]
    eye = torch.eye(len(labels), dtype=torch.bool)
    hardest_positive = distance.masked_fill(~same | eye, 0).amax(1)
    hardest_negative = distance.masked_fill(same, 10).amin(1)
    return F.relu(hardest_positive - hardest_negative + margin).mean()


@torch.no_grad()
def recall_at_1(model, images, labels):
    model.eval()
    embeddings = torch.cat([model(chunk) for chunk in images.split(128)])
    distance = pairwise(embeddings)
    return (labels[distance.argmin(dim=1)] == labels).float().mean().item()


def main():
    random.seed(9)
    torch.manual_seed(9)
    images, labels = faces(1)
    test_images, test_labels = faces(2)  # people that were never seen
    loader = DataLoader(TensorDataset(images, labels), batch_sampler=PKSampler(labels, p=8, k=4, batches=12))
    model = EmbeddingNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = batch_hard_triplet(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} recall@1 {recall_at_1(model, test_images, test_labels):.3f}")


if __name__ == "__main__":
    main()
