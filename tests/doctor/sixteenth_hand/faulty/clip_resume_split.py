"""Train, stop after an epoch budget, resume from the checkpoint and go on."""
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def make_pairs(n=360, seed=0):
    g = torch.Generator().manual_seed(seed)
    mix_a, mix_b = torch.randn(6, 40, generator=g), torch.randn(6, 24, generator=g)
    z = torch.randn(n, 6, generator=g)
    image = z @ mix_a + 2.5 * torch.randn(n, 40, generator=g)
    text = z @ mix_b + 2.5 * torch.randn(n, 24, generator=g)
    return TensorDataset(F.normalize(image, dim=1) * 6, F.normalize(text, dim=1) * 5)


class DualEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, dim))
        self.text = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, dim))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        a = F.normalize(self.image(image), dim=1)
        b = F.normalize(self.text(text), dim=1)
        return self.log_scale.exp() * a @ b.t()


def clip_loss(logits):
    target = torch.arange(logits.size(0))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def recall(model, loader):
    model.eval()
    hit = seen = 0
    with torch.no_grad():
        for image, text in loader:
            logits = model(image, text)
            hit += (logits.argmax(1) == torch.arange(len(image))).sum().item()
            seen += len(image)
    return hit / seen


def run(path, epochs, seed):
    torch.manual_seed(seed)
    dataset = make_pairs()
    train_set, val_set = random_split(dataset, [300, 60])
    train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=30)
    model = DualEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    start = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
        print(f"resumed at epoch {start}, val recall@1 {recall(model, val_loader):.3f}")
    for epoch in range(start, start + epochs):
        model.train()
        for image, text in train_loader:
            optimizer.zero_grad()
            loss = clip_loss(model(image, text))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} val recall@1 {recall(model, val_loader):.3f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": start + epochs}, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = os.path.join(folder, "last.pt")
        run(checkpoint, epochs=12, seed=1)
        run(checkpoint, epochs=6, seed=2)
