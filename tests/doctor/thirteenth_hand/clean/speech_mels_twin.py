"""Spoken commands (drawn tones) from log-mel spectrograms of unequal length."""

import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

RATE, N_FFT, HOP, MELS = 4000, 256, 128, 24
COMMANDS = {"up": (300, 700), "down": (700, 300), "stay": (450, 450), "stop": (900, 900)}


def say(command, g):
    a, b = COMMANDS[command]
    n = int(RATE * (0.35 + 0.6 * torch.rand(1, generator=g).item()))
    pitch = 1 + 0.1 * torch.randn(1, generator=g).item()
    freq = pitch * torch.linspace(a, b, n)
    wave = torch.sin(2 * math.pi * torch.cumsum(freq, 0) / RATE) * torch.hann_window(n)
    wave = wave + 0.3 * torch.randn(n, generator=g)
    wave[: RATE // 10] = 0.0  # the recorder's gate opens late
    return wave


class Commands(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        names = list(COMMANDS)
        self.labels = torch.randint(0, len(names), (n,), generator=g).tolist()
        self.waves = [say(names[y], g) for y in self.labels]

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        return self.waves[i], self.labels[i]


def mel_filters():
    to_mel = lambda f: 2595 * math.log10(1 + f / 700)
    points = torch.linspace(to_mel(60), to_mel(RATE / 2), MELS + 2)
    hz = 700 * (10 ** (points / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)
    up = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


FILTERS, WINDOW = mel_filters(), torch.hann_window(N_FFT)


def log_mel(wave):
    power = torch.stft(wave, N_FFT, HOP, window=WINDOW, center=False, return_complex=True).abs() ** 2
    return torch.log(FILTERS @ power + 1e-6).T


def collate(batch):
    feats = [log_mel(w) for w, _ in batch]
    lengths = torch.tensor([len(f) for f in feats])
    x = nn.utils.rnn.pad_sequence(feats, batch_first=True)
    return x, lengths, torch.tensor([y for _, y in batch])


class SpecAugment(nn.Module):
    def __init__(self, freq=5, time=4):
        super().__init__()
        self.freq, self.time = freq, time

    def forward(self, x):
        if not self.training:
            return x
        x = x.clone()
        f0 = random.randint(0, MELS - self.freq)
        t0 = random.randint(0, max(0, x.shape[1] - self.time))
        x[:, :, f0 : f0 + self.freq] = 0
        x[:, t0 : t0 + self.time] = 0
        return x


class CommandNet(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.augment = SpecAugment()
        self.conv1 = nn.Conv1d(MELS, 48, 3, padding=1)
        self.conv2 = nn.Conv1d(48, 48, 3, padding=1)
        self.gru = nn.GRU(48, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, len(COMMANDS))

    def forward(self, x, lengths):
        mask = (torch.arange(x.shape[1])[None] < lengths[:, None])[..., None].float()
        x = self.augment((x - self.mean) / self.std) * mask
        h = F.relu(self.conv1(x.transpose(1, 2)))
        h = F.relu(self.conv2(h)).transpose(1, 2)
        packed = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        pooled = (h * mask).sum(1) / mask.sum(1)
        return self.out(pooled)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = n = 0
    for x, lengths, y in loader:
        logits = model(x, lengths)
        hits += (logits.argmax(1) == y).sum().item()
        n += len(y)
    return hits / n


def main():
    random.seed(0)
    torch.manual_seed(0)
    train, val = Commands(400, 1), Commands(160, 2)
    frames = torch.cat([log_mel(w) for w in train.waves])
    model = CommandNet(frames.mean(0), frames.std(0))
    train_loader = DataLoader(train, batch_size=20, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(val, batch_size=40, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(5):
        model.train()
        total = 0.0
        for x, lengths, y in train_loader:
            loss = F.cross_entropy(model(x, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / len(train_loader):.3f}  val accuracy {evaluate(model, val_loader):.3f}")
    torch.save(model.state_dict(), "commands.pt")


if __name__ == "__main__":
    main()
