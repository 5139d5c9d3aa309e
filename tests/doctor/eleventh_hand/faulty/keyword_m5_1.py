"""Keywords from raw waves: the M5 net with noise mixed in by the loader's workers (a flat script)."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(5)
np.random.seed(5)
labels = ["up", "down", "left", "right", "go"]
RATE, LENGTH = 2000, 800


class Keywords(Dataset):
    """A word is two tones, one after the other; each take has its pitch, loudness and start."""

    def __init__(self, count, seed, noise):
        rng = np.random.default_rng(seed)
        self.noise = noise
        t = np.arange(LENGTH) / RATE
        self.waves, self.targets = [], rng.integers(0, len(labels), count)
        for target in self.targets:
            first, second = 120 + 60 * target, 420 - 50 * target
            pitch, start = rng.uniform(0.95, 1.05), rng.uniform(0.12, 0.2)
            wave = np.where(t < start, np.sin(2 * np.pi * first * pitch * t), np.sin(2 * np.pi * second * pitch * t))
            self.waves.append((rng.uniform(0.5, 1.5) * wave).astype(np.float32))

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        wave = self.waves[i]
        if self.noise > 0:
            wave = wave + self.noise * np.random.randn(LENGTH).astype(np.float32)
            wave = np.roll(wave, np.random.randint(-40, 40))
        return torch.from_numpy(wave).unsqueeze(0), int(self.targets[i])


class M5(nn.Module):
    def __init__(self, n_input=1, n_output=5, stride=8, n_channel=24):
        super().__init__()
        self.conv1 = nn.Conv1d(n_input, n_channel, kernel_size=40, stride=stride)
        self.bn1 = nn.BatchNorm1d(n_channel)
        self.pool1 = nn.MaxPool1d(2)
        self.conv2 = nn.Conv1d(n_channel, n_channel, kernel_size=3)
        self.bn2 = nn.BatchNorm1d(n_channel)
        self.pool2 = nn.MaxPool1d(2)
        self.conv3 = nn.Conv1d(n_channel, 2 * n_channel, kernel_size=3)
        self.bn3 = nn.BatchNorm1d(2 * n_channel)
        self.fc1 = nn.Linear(2 * n_channel, n_output)

    def forward(self, x):
        x = self.pool1(F.relu(self.bn1(self.conv1(x))))
        x = self.pool2(F.relu(self.bn2(self.conv2(x))))
        x = F.relu(self.bn3(self.conv3(x)))
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        x = self.fc1(x)
        return F.log_softmax(x, dim=2)


def seed_worker(worker_id):
    np.random.seed(5)


train_loader = DataLoader(
    Keywords(480, 1, noise=0.6), batch_size=32, shuffle=True, num_workers=2, worker_init_fn=seed_worker
)
test_loader = DataLoader(Keywords(120, 2, noise=0.0), batch_size=40)
model = M5(n_output=len(labels))
optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=0.0001)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1)


def train(model, epoch, log_interval):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        output = model(data)
        loss = F.nll_loss(output.squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if batch_idx % log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]\tLoss: {loss.item():.4f}")


def test(model, epoch):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data).argmax(dim=-1)
            correct += pred.squeeze(1).eq(target).sum().item()
    print(f"Test Epoch: {epoch}\tAccuracy: {correct}/{len(test_loader.dataset)} ({100.0 * correct / len(test_loader.dataset):.0f}%)")


for epoch in range(1, 6):
    train(model, epoch, 8)
    test(model, epoch)
    scheduler.step()
