import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Normalizer:
    def __init__(self, tensor):
        self.mean, self.std = tensor.mean(), tensor.std()

    def norm(self, t):
        return (t - self.mean) / self.std

    def denorm(self, t):
        return t * self.std + self.mean


class RandomClusters(Dataset):
    """Small clusters of atoms with a pair-potential relaxed energy (eV) and label noise."""

    def __init__(self, n, seed, n_atoms=6, noise=0.0):
        g = torch.Generator().manual_seed(seed)
        self.z = torch.randint(0, 4, (n, n_atoms), generator=g)
        self.pos = 1.6 * torch.randn(n, n_atoms, 3, generator=g)
        strength = torch.tensor([0.5, 1.0, 1.6, 2.2])
        d = torch.cdist(self.pos, self.pos) + torch.eye(n_atoms) * 1e3
        pair = strength[self.z][:, :, None] * strength[self.z][:, None] * torch.exp(-d / 1.5)
        self.y = -pair.sum((1, 2)) / 2 - 4.0 + noise * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.z[i], self.pos[i], self.y[i]


class SchNetLite(nn.Module):
    def __init__(self, hidden=64, n_gaussians=16, n_interactions=2):
        super().__init__()
        self.embedding = nn.Embedding(4, hidden)
        self.register_buffer("offset", torch.linspace(0, 6, n_gaussians))
        self.filters = nn.ModuleList([nn.Sequential(nn.Linear(n_gaussians, hidden), nn.SiLU(),
                                                    nn.Linear(hidden, hidden)) for _ in range(n_interactions)])
        self.updates = nn.ModuleList([nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(),
                                                    nn.Linear(hidden, hidden)) for _ in range(n_interactions)])
        self.lin = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, z, pos):
        n_atoms = z.shape[1]
        dist = torch.cdist(pos, pos)
        rbf = torch.exp(-4.0 * (dist.unsqueeze(-1) - self.offset) ** 2)
        neighbours = (1 - torch.eye(n_atoms)).unsqueeze(-1)
        h = self.embedding(z)
        for filt, update in zip(self.filters, self.updates):
            message = (filt(rbf) * neighbours * h.unsqueeze(1)).sum(2)
            h = h + update(message)
        return self.lin(h).sum((1, 2)) / n_atoms


class EnergyTrainer:
    def __init__(self, run_dir, train_set, val_set, test_set, max_epochs=24, primary_metric="energy_mae"):
        self.train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
        self.val_loader = DataLoader(val_set, batch_size=64)
        self.test_loader = DataLoader(test_set, batch_size=64)
        self.normalizer = Normalizer(train_set.y)
        self.model = SchNetLite()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.max_epochs, self.primary_metric = max_epochs, primary_metric
        self.best_val_metric = 1e9 if "mae" in primary_metric else -1.0
        self.checkpoint = os.path.join(run_dir, "best_checkpoint.pt")

    def update_best(self, val_metrics, epoch):
        if (
            "mae" in self.primary_metric
            and val_metrics[self.primary_metric] < self.best_val_metric
        ) or (
            val_metrics[self.primary_metric] > self.best_val_metric
        ):
            self.best_val_metric = val_metrics[self.primary_metric]
            torch.save({"epoch": epoch, "state_dict": self.model.state_dict(), "val_metrics": val_metrics},
                       self.checkpoint)

    def train(self):
        for epoch in range(1, self.max_epochs + 1):
            self.model.train()
            total = 0.0
            for z, pos, y in self.train_loader:
                loss = nn.functional.l1_loss(self.model(z, pos), self.normalizer.norm(y))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item() * len(y)
            val_metrics = self.validate(self.val_loader)
            self.update_best(val_metrics, epoch)
            if epoch % 4 == 0:
                print(f"epoch {epoch}: train {total / len(self.train_loader.dataset):.4f} "
                      f"val energy_mae {val_metrics['energy_mae']:.4f}")

        best = torch.load(self.checkpoint)
        self.model.load_state_dict(best["state_dict"])
        print(f"best checkpoint: epoch {best['epoch']}, val energy_mae {best['val_metrics']['energy_mae']:.4f}, "
              f"test energy_mae {self.validate(self.test_loader)['energy_mae']:.4f}")

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        pred = torch.cat([self.normalizer.denorm(self.model(z, pos)) for z, pos, _ in loader])
        error = (pred - loader.dataset.y).abs()
        return {"energy_mae": error.mean().item(), "energy_within_threshold": (error < 0.5).float().mean().item()}


if __name__ == "__main__":
    torch.manual_seed(0)
    EnergyTrainer(tempfile.mkdtemp(), RandomClusters(160, 1, noise=0.5), RandomClusters(128, 2),
                  RandomClusters(256, 3)).train()
