"""Keyword spotting on drawn sounds, with mixed precision."""
import torch
from torch import nn
from torch.utils.data import DataLoader

from words_amp_2_parts.sounds import WordDataset


class KeywordNet(nn.Module):
    def __init__(self, n_mels=16, classes=6):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(n_mels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 48, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1)
        )
        self.fc = nn.Linear(48, classes)

    def forward(self, spec):
        return self.fc(self.conv(spec).squeeze(-1))


def train_one_epoch(model, loader, criterion, optimizer, scaler, max_norm):
    model.train()
    total = 0.0
    for spec, label in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(spec), label)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    return sum((model(spec).argmax(1) == label).sum().item() for spec, label in loader) / len(loader.dataset)


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(WordDataset(768, 1, training=True), batch_size=32, shuffle=True, num_workers=2)  # <- here
    test_loader = DataLoader(WordDataset(256, 2, training=False), batch_size=64)
    model = KeywordNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for epoch in range(6):
        loss = train_one_epoch(model, train_loader, nn.CrossEntropyLoss(), optimizer, scaler, max_norm=1.0)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
