"""Soil samples: acidity, clay and texture at once, with learned weights of the tasks.

A long run is made in two jobs here: the second one resumes from the file of the first.
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TEXTURES = 4


def samples(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 16)).astype(np.float32)
    latent = np.tanh(x[:, :8] @ np.random.default_rng(0).normal(0, 0.5, (8, 5)))
    ph = 6.5 + latent[:, 0] + 0.5 * latent[:, 1] * x[:, 9] + 0.1 * rng.normal(size=n)
    clay = 30 + 12 * latent[:, 2] + 5 * x[:, 10] + rng.normal(size=n)
    texture = np.argmax(latent[:, :4] + 0.2 * rng.normal(size=(n, 4)), 1)
    clay[rng.random(n) < 0.75] = np.nan  # the laboratory measured few of them
    to = lambda a: torch.tensor(a, dtype=torch.float32)
    return torch.from_numpy(x), (to(ph) - 6.5) / 1.0, (to(clay) - 30) / 12, torch.tensor(texture)


class SoilNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.ph, self.clay, self.texture = nn.Linear(64, 1), nn.Linear(64, 1), nn.Linear(64, TEXTURES)

    def forward(self, x):
        h = self.trunk(x)
        return self.ph(h).squeeze(-1), self.clay(h).squeeze(-1), self.texture(h)


class UncertaintyLoss(nn.Module):
    """Kendall et al.: exp(-s) * loss + s for each task."""

    def __init__(self, tasks=3):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(tasks))

    def forward(self, losses):
        return sum(torch.exp(-s) * loss + s for s, loss in zip(self.log_vars, losses))


def masked_mse(pred, target):
    known = ~torch.isnan(target)
    if not known.any():
        return pred.sum() * 0.0
    return F.mse_loss(pred[known], target[known])


class Trainer:
    def __init__(self, train, val, epochs, path):
        self.model, self.weigh = SoilNet(), UncertaintyLoss()
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), *self.weigh.parameters()], lr=4e-3, weight_decay=1e-3)
        self.train_loader = DataLoader(train, batch_size=8, shuffle=True)
        self.val, self.epochs, self.path = val, epochs, path
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs)
        self.epoch, self.best = 0, float("inf")

    def task_losses(self, x, ph, clay, texture):
        p, c, t = self.model(x)
        return [F.mse_loss(p, ph), masked_mse(c, clay), F.cross_entropy(t, texture)]

    def save(self):
        state = {
            "model": self.model.state_dict(), "weigh": self.weigh.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(), "epoch": self.epoch, "best": self.best,
        }
        torch.save(state, self.path)

    def resume(self):
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.weigh.load_state_dict(state["weigh"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch, self.best = state["epoch"], state["best"]

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, ph, clay, texture = self.val.tensors
        p, c, t = self.model(x)
        known = ~torch.isnan(clay)
        return {
            "ph": (p - ph).abs().mean().item(),
            "clay": 12 * (c - clay)[known].abs().mean().item(),
            "texture": (t.argmax(1) == texture).float().mean().item(),
            "loss": sum(loss.item() for loss in self.task_losses(x, ph, clay, texture)),
        }

    def run(self, until):
        while self.epoch < until:
            self.model.train()
            for batch in self.train_loader:
                loss = self.weigh(self.task_losses(*batch))
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1
            scores = self.evaluate()
            self.best = min(self.best, scores["loss"])
            self.save()
            lr = self.optimizer.param_groups[0]["lr"]
            print(f"epoch {self.epoch}  lr {lr:.1e}  " + "  ".join(f"{k} {v:.3f}" for k, v in scores.items()))


if __name__ == "__main__":
    torch.manual_seed(6)
    train, val = TensorDataset(*samples(800, 1)), TensorDataset(*samples(300, 2))
    first = Trainer(train, val, epochs=8, path="soil.pt")
    first.run(until=4)  # the queue ends the job here
    second = Trainer(train, val, epochs=8, path="soil.pt")
    second.resume()
    second.run(until=8)
    print("weights of the tasks:", torch.exp(-second.weigh.log_vars).tolist())
