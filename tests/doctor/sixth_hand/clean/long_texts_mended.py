"""A deep encoder of long texts in little memory: each layer is computed again in the backward pass."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    words: int = 120
    width: int = 48
    depth: int = 3
    length: int = 64
    dropout: float = 0.2
    classes: int = 3
    epochs: int = 2
    lr: float = 1e-3
    save_memory: bool = True


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = nn.MultiheadAttention(config.width, 4, dropout=config.dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 2 * config.width), nn.GELU(), nn.Dropout(config.dropout), nn.Linear(2 * config.width, config.width)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.words, config.width)
        self.position = nn.Embedding(config.length, config.width)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.depth)])
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, ids):
        x = self.embed(ids) + self.position.weight[: ids.shape[1]]
        for layer in self.layers:
            if self.config.save_memory and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(x.mean(1))


def texts(config, count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, config.classes, (count,), generator=generator)
    ids = torch.randint(0, config.words, (count, config.length), generator=generator)
    own = torch.rand(count, config.length, generator=generator) < 0.15
    ids = torch.where(own, labels[:, None] * 5 + ids % 5, ids)
    return TensorDataset(ids, labels)


def main(config):
    torch.manual_seed(3)
    model = Encoder(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    train = DataLoader(texts(config, 384, 1), 16, shuffle=True)
    test = DataLoader(texts(config, 96, 2), 48)
    for epoch in range(config.epochs):
        model.train()
        for ids, labels in train:
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(ids).argmax(1) == labels).sum().item() for ids, labels in test)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / 96:.3f}")


if __name__ == "__main__":
    main(Config())
