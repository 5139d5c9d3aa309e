"""Compare generated images with real ones in the feature space of a small network, per condition."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def cell_images(n, seed, blur=0.0, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    y = torch.arange(n) * 6 // n
    x = 0.8 * kinds[y] + torch.randn(n, 3, 16, 16, generator=g) + shift
    if blur:
        x = (1 - blur) * x + blur * nn.functional.avg_pool2d(x, 3, 1, 1)
    return TensorDataset(x, y)


class SmallInception(nn.Module):
    def __init__(self, n_classes=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(48, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dropout, self.fc = nn.Dropout(0.2), nn.Linear(32, n_classes)

    def forward(self, x):
        return self.fc(self.dropout(self.features(x)))


def train_inception(model, train_set, epochs=4):
    loader = DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        model.train()
        hit = seen = 0
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hit, seen = hit + (out.argmax(1) == y).sum().item(), seen + len(y)
        print(f"epoch {epoch} loss {loss.item():.3f} accuracy {hit / seen:.3f}")
    return model


class InceptionEmbedding:
    def __init__(self, model, batch_size):
        self.model, self.batch_size = model, batch_size
        self.model.eval()

    @torch.no_grad()
    def extract_embeddings(self, dataset):
        loader = DataLoader(dataset, batch_size=self.batch_size, shuffle=False)
        return np.concatenate([self.model.features(x).numpy() for x, _ in loader]).astype(np.float64)


def frechet_distance(a, b):
    mu_a, mu_b = a.mean(0), b.mean(0)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    eig = np.linalg.eigvals(cov_a @ cov_b)
    trace = np.sqrt(np.clip(eig.real, 0, None)).sum()
    return float(((mu_a - mu_b) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * trace)


def main():
    train_set = cell_images(960, 1)
    order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(4))
    model = train_inception(SmallInception(), TensorDataset(*[t[order] for t in train_set.tensors]))
    real, generated = cell_images(480, 5), cell_images(480, 6, blur=0.3, shift=0.2)
    for batch_size in (8, 32, 120):
        embedder = InceptionEmbedding(model, batch_size)
        a, b = embedder.extract_embeddings(real), embedder.extract_embeddings(generated)
        per_class = [frechet_distance(a[y], b[y]) for y in np.split(np.arange(480), 6)]
        print(f"batch size {batch_size:3d}: FID {frechet_distance(a, b):.4f}, mean over the conditions {np.mean(per_class):.4f}")


if __name__ == "__main__":
    main()
