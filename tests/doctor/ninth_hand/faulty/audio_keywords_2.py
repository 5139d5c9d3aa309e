import math

import torch
from torch import nn

torch.manual_seed(18)
RATE, SECONDS, CLASSES = 4000, 0.25, 6


def make_audio(n):
    y = torch.randint(0, CLASSES, (n,))
    t = torch.arange(int(RATE * SECONDS)) / RATE
    f0 = 200 + 130 * y.float().unsqueeze(1) + 30 * torch.randn(n, 1)
    sweep = (y % 2 * 400.0).unsqueeze(1)
    wave = torch.sin(2 * math.pi * (f0 * t + sweep * t * t))
    start = torch.randint(0, 500, (n, 1))
    position = torch.arange(len(t)).unsqueeze(0)
    spoken = (position >= start) & (position < start + 500)
    return torch.where(spoken, wave + 0.1 * torch.randn_like(wave), torch.zeros(())), y


class Spectrogram(nn.Module):
    def __init__(self, n_fft=128, hop=64):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True).abs().pow(2)
        spec = torch.log(spec)  # <- here
        return ((spec + 5) / 5).unsqueeze(1)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d((8, 1)),
            nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, CLASSES),
        )

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self):
        self.frontend = Spectrogram()
        self.model = KeywordNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loss_fn = nn.CrossEntropyLoss()

    def forward(self, wave):
        with torch.no_grad():
            features = self.frontend(wave)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(features)

    def train_epoch(self, waves, labels):
        self.model.train()
        for idx in torch.randperm(len(waves)).split(32):
            logits = self.forward(waves[idx])
            loss = self.loss_fn(logits.float(), labels[idx])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def score(self, waves, labels):
        self.model.eval()
        return (self.forward(waves).argmax(1) == labels).float().mean().item()


trainer = Trainer()
waves, labels = make_audio(512)
test_waves, test_labels = make_audio(128)
for epoch in range(5):
    loss = trainer.train_epoch(waves, labels)
    print(f"epoch {epoch} loss {loss:.3f} accuracy {trainer.score(test_waves, test_labels):.3f}")
