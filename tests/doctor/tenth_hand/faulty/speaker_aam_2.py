"""Speaker embeddings with an additive angular margin; utterances are cropped at random by the loader's workers."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SPEAKERS, MELS, FRAMES, CROP = 12, 20, 80, 48


def utterances(per_speaker, seed):
    rng = np.random.default_rng(seed)
    voices = np.random.default_rng(99).normal(0, 1, (SPEAKERS, MELS, 3))
    rows, labels = [], []
    for speaker in range(SPEAKERS):
        for _ in range(per_speaker):
            content = rng.normal(0, 1, (3, FRAMES)).cumsum(1) / 6
            rows.append(voices[speaker] @ content + 0.6 * voices[speaker].mean(1, keepdims=True) + rng.normal(0, 0.7, (MELS, FRAMES)))
            labels.append(speaker)
    return np.stack(rows).astype(np.float32), np.array(labels)


class Utterances(Dataset):
    def __init__(self, rows, labels, training, seed=0):
        self.rows, self.labels, self.training = rows, labels, training
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        row = self.rows[index]
        if self.training:
            start = self.rng.integers(0, FRAMES - CROP + 1)
            row = row[:, start : start + CROP]
            row = row + self.rng.normal(0, 0.2, row.shape).astype(np.float32)
        row = row - row.mean(1, keepdims=True) * 0.2
        return torch.from_numpy(row), int(self.labels[index])


class TDNN(nn.Module):
    def __init__(self, channels=48, embedding=32):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(MELS, channels, 5, bias=False), nn.BatchNorm1d(channels), nn.ReLU(),
            nn.Conv1d(channels, channels, 3, dilation=2, bias=False), nn.BatchNorm1d(channels), nn.ReLU(),
        )
        self.embed = nn.Linear(2 * channels, embedding)

    def forward(self, x):
        h = self.frames(x)
        stats = torch.cat([h.mean(-1), h.std(-1)], dim=1)
        return self.embed(stats)


class AAMSoftmax(nn.Module):
    def __init__(self, embedding, classes, margin=0.15, scale=15.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, embedding))
        nn.init.xavier_normal_(self.weight)
        self.cos_m, self.sin_m, self.scale = math.cos(margin), math.sin(margin), scale

    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        sine = (1.0 - cosine.pow(2)).clamp(1e-6, 1).sqrt()
        phi = cosine * self.cos_m - sine * self.sin_m
        one_hot = F.one_hot(label, self.weight.size(0)).bool()
        logits = torch.where(one_hot, phi, cosine) * self.scale
        return F.cross_entropy(logits, label)


@torch.no_grad()
def equal_error_rate(model, loader):
    model.eval()
    parts = [(F.normalize(model(x)), y) for x, y in loader]
    e, y = torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])
    i, j = torch.triu_indices(len(e), len(e), offset=1)
    scores, same = (e[i] * e[j]).sum(1), y[i] == y[j]
    thresholds = torch.linspace(-1, 1, 200)
    miss = torch.stack([(scores[same] < t).float().mean() for t in thresholds])
    alarm = torch.stack([(scores[~same] >= t).float().mean() for t in thresholds])
    return ((miss + alarm) / 2)[(miss - alarm).abs().argmin()].item()


def main():
    torch.manual_seed(33)
    train_set = Utterances(*utterances(30, 1), training=True, seed=33)
    test_set = Utterances(*utterances(6, 2), training=False)
    train_loader = DataLoader(train_set, batch_size=36, shuffle=True, num_workers=2)
    test_loader = DataLoader(test_set, batch_size=36)
    model, criterion = TDNN(), AAMSoftmax(32, SPEAKERS)
    optimizer = torch.optim.Adam(list(model.parameters()) + list(criterion.parameters()), lr=2e-3)
    for epoch in range(3):
        model.train()
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} EER {100 * equal_error_rate(model, test_loader):.2f}%")


if __name__ == "__main__":
    main()
