"""Probe the hidden states of contrast pairs, one reporter per layer."""
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn

LAYERS, DIM = 3, 64


def extract_hiddens(n, seed, positive_rate):
    """Hidden states of 'question? Yes' and 'question? No', layer by layer."""
    directions = torch.randn(LAYERS, DIM, generator=torch.Generator().manual_seed(0))
    directions = F.normalize(directions, dim=-1)
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=g) < positive_rate).long()
    sign = (2 * labels - 1).float()
    hiddens = []
    for layer in range(LAYERS):
        common = 2.0 * torch.randn(n, DIM, generator=g)
        scale = 1.0 + 0.5 * layer
        x0 = common - scale * sign[:, None] * directions[layer] + 0.8 * torch.randn(n, DIM, generator=g) - 3.0
        x1 = common + scale * sign[:, None] * directions[layer] + 0.8 * torch.randn(n, DIM, generator=g) + 3.0
        hiddens.append((x0, x1))
    return hiddens, labels


def normalize(hiddens, reference):
    out = []
    for (x0, x1), (r0, r1) in zip(hiddens, reference):
        out.append(((x0 - r0.mean(0)) / r0.std(0), (x1 - r1.mean(0)) / r1.std(0)))
    return out


class Reporter(nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.probe = nn.Linear(in_features, 1)

    def forward(self, x0, x1):
        return self.probe(x1 - x0).squeeze(-1)

    def fit(self, x0, x1, labels, epochs=40, batch_size=64):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)
        self.train()
        for epoch in range(epochs):
            total = 0.0
            for idx in torch.randperm(len(labels)).split(batch_size):
                loss = F.binary_cross_entropy_with_logits(self(x0[idx], x1[idx]), labels[idx].float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(idx)
        return total / len(labels)

    @torch.no_grad()
    def score(self, x0, x1, labels):
        self.eval()
        logits = self(x0, x1)
        loss = F.binary_cross_entropy_with_logits(logits, labels.float()).item()
        acc = ((logits > 0).long() == labels).float().mean().item()
        return loss, acc, roc_auc_score(labels.numpy(), logits.numpy())


def train(seed=42):
    torch.manual_seed(seed)
    np.random.seed(seed)
    train_hiddens, train_labels = extract_hiddens(800, seed=1, positive_rate=0.5)
    val_hiddens, val_labels = extract_hiddens(300, seed=2, positive_rate=0.85)

    train_hiddens = normalize(train_hiddens, train_hiddens)
    val_hiddens = normalize(val_hiddens, val_hiddens)

    print("layer  train_loss  val_loss  val_acc  val_auroc")
    for layer in range(LAYERS):
        reporter = Reporter(DIM)
        train_loss = reporter.fit(*train_hiddens[layer], train_labels)
        val_loss, acc, auroc = reporter.score(*val_hiddens[layer], val_labels)
        print(f"{layer:5d}  {train_loss:10.4f}  {val_loss:8.4f}  {acc:7.4f}  {auroc:9.4f}")


if __name__ == "__main__":
    train()
