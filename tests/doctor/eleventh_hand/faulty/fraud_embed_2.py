"""Card fraud from categories and amounts: embeddings, a dataclass for the settings, average precision by hand."""
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    cardinalities: list = field(default_factory=lambda: [40, 12, 24])
    embed_dim: int = 6
    hidden: int = 64
    batch_size: int = 64
    lr: float = 2e-3
    epochs: int = 6
    rate: float = 0.06
    seed: int = 7


def make_transactions(cfg: Config, count: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    risk = torch.Generator().manual_seed(99)
    cats = torch.stack([torch.randint(0, c, (count,), generator=g) for c in cfg.cardinalities], dim=1)
    numeric = torch.randn(count, 4, generator=g)
    weights = [torch.randn(c, generator=risk) for c in cfg.cardinalities]
    score = sum(w[cats[:, i]] for i, w in enumerate(weights)) + 1.2 * numeric[:, 0] * (numeric[:, 1] > 0)
    score = score + 0.4 * torch.randn(count, generator=g)
    fraud = (score > score.quantile(1 - cfg.rate)).float()
    return TensorDataset(cats, numeric, fraud)


class FraudNet(nn.Module):
    def __init__(self, cfg: Config, n_numeric: int = 4):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(c, cfg.embed_dim) for c in cfg.cardinalities])
        width = cfg.embed_dim * len(cfg.cardinalities) + n_numeric
        self.mlp = nn.Sequential(
            nn.Linear(width, cfg.hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(),
            nn.Linear(cfg.hidden, 1),
        )

    def forward(self, cats, numeric):
        parts = [table(cats[:, i]) for i, table in enumerate(self.embeddings)]
        return torch.sigmoid(self.mlp(torch.cat([*parts, numeric], dim=1))).squeeze(1)


def average_precision(scores, truth):
    order = scores.argsort(descending=True)
    hits = truth[order]
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return ((precision * hits).sum() / hits.sum().clamp(min=1)).item()


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.train_set = make_transactions(cfg, 5000, 1)
        self.valid_set = make_transactions(cfg, 1500, 2)
        self.model = FraudNet(cfg)
        truth = self.train_set.tensors[2]
        positives = truth.sum()
        pos_weight = (len(truth) - positives) / positives
        self.criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight.sqrt())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)

    def fit(self):
        loader = DataLoader(self.train_set, batch_size=self.cfg.batch_size, shuffle=True, drop_last=True)
        for epoch in range(self.cfg.epochs):
            self.model.train()
            running = 0.0
            for cats, numeric, fraud in loader:
                logits = self.model(cats, numeric)
                loss = self.criterion(logits, fraud)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                running += loss.item()
            ap, recall = self.evaluate()
            print(f"epoch {epoch} loss {running / len(loader):.4f} average precision {ap:.3f} recall {recall:.3f}")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        scores, truths = [], []
        for cats, numeric, fraud in DataLoader(self.valid_set, batch_size=256):
            scores.append(self.model(cats, numeric))
            truths.append(fraud)
        scores, truths = torch.cat(scores), torch.cat(truths)
        recall = ((scores > 0.5) * truths).sum() / truths.sum()
        return average_precision(scores, truths), recall.item()


if __name__ == "__main__":
    Trainer(Config()).fit()
