"""Noise is taken out of speech by a small convolutional network in half precision, with a scaled loss."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Options:
    width = 24
    epochs = 3
    batch_size = 16
    lr = 2e-3
    max_norm = 0.5
    half = True


def speech(count, seed, length=512):
    generator = torch.Generator().manual_seed(seed)
    time = torch.linspace(0, 1, length)
    pitch = 20 + 40 * torch.rand(count, 4, 1, generator=generator)
    clean = torch.sin(2 * torch.pi * pitch * time).mean(1, keepdim=True)
    return TensorDataset(clean + 0.3 * torch.randn(count, 1, length, generator=generator), clean)


class Cleaner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv1d(1, width, 9, padding=4), nn.PReLU(), nn.Conv1d(width, width, 9, padding=4), nn.PReLU())
        self.decode = nn.Conv1d(width, 1, 9, padding=4)

    def forward(self, x):
        return x - self.decode(self.encode(x))


class Trainer:
    def __init__(self, options):
        self.options = options
        self.model = Cleaner(options.width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.scaler = torch.amp.GradScaler("cpu", enabled=options.half)
        self.criterion = nn.L1Loss()

    def step(self, noisy, clean):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.options.half):
            loss = self.criterion(self.model(noisy), clean)
        self.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_norm)  # <- here
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def fit(self, train, test):
        for epoch in range(self.options.epochs):
            self.model.train()
            losses = [self.step(noisy, clean).item() for noisy, clean in train]
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}, test {self.error(test):.4f}")

    @torch.no_grad()
    def error(self, loader):
        self.model.eval()
        total = count = 0
        for noisy, clean in loader:
            total += (self.model(noisy) - clean).abs().mean(dim=(1, 2)).sum().item()
            count += len(noisy)
        return total / count


def main():
    torch.manual_seed(51)
    options = Options()
    train = DataLoader(speech(256, 1), options.batch_size, shuffle=True)
    Trainer(options).fit(train, DataLoader(speech(64, 2), 32))


if __name__ == "__main__":
    main()
