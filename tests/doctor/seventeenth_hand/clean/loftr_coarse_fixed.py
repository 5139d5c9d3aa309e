"""Coarse-level matching of two feature grids with linear attention and a dual-softmax."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

H = W = 8
D_MODEL = 32


class PositionEncodingSine(nn.Module):
    """Sinusoidal position encoding of 2D feature maps."""

    def __init__(self, d_model, max_shape=(32, 32)):
        super().__init__()
        pe = torch.zeros((d_model, *max_shape))
        y_position = torch.ones(max_shape).cumsum(0).float().unsqueeze(0)
        x_position = torch.ones(max_shape).cumsum(1).float().unsqueeze(0)
        div_term = torch.exp(torch.arange(0, d_model // 2, 2).float() * (-math.log(10000.0) / (d_model // 2)))
        div_term = div_term[:, None, None]
        pe[0::4, :, :] = torch.sin(x_position * div_term)
        pe[1::4, :, :] = torch.cos(x_position * div_term)
        pe[2::4, :, :] = torch.sin(y_position * div_term)
        pe[3::4, :, :] = torch.cos(y_position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0), persistent=False)

    def forward(self, x):
        return x + self.pe[:, :, :x.size(2), :x.size(3)]


class EncoderLayer(nn.Module):
    def __init__(self, d_model, nhead=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(2 * d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, source):
        message = self.norm1(self.attention(x, source, source, need_weights=False)[0])
        return x + self.norm2(self.mlp(torch.cat([x, message], dim=2)))


class LoFTR(nn.Module):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1, padding_mode="circular"), nn.ReLU(),
                                      nn.Conv2d(64, D_MODEL, 1))
        self.pos_encoding = PositionEncodingSine(D_MODEL)
        self.layers = nn.ModuleList([EncoderLayer(D_MODEL) for _ in range(2)])
        self.temperature = temperature

    def forward(self, image0, image1):
        feat0 = self.pos_encoding(self.backbone(image0)).flatten(2).transpose(1, 2)
        feat1 = self.pos_encoding(self.backbone(image1)).flatten(2).transpose(1, 2)
        for i, layer in enumerate(self.layers):
            if i % 2 == 0:
                feat0, feat1 = layer(feat0, feat0), layer(feat1, feat1)
            else:
                feat0, feat1 = layer(feat0, feat1), layer(feat1, feat0)
        sim = torch.einsum("nlc,nsc->nls", feat0, feat1) / (D_MODEL ** 0.5 * self.temperature)
        return F.log_softmax(sim, 1) + F.log_softmax(sim, 2)


def image_pairs(n, seed):
    """Textures of few distinct patches; image1 is image0 moved by a small cyclic shift."""
    g = torch.Generator().manual_seed(seed)
    palette = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    image0 = palette[torch.randint(0, 6, (n, H, W), generator=g)].permute(0, 3, 1, 2)
    shift = torch.randint(0, 3, (n, 2), generator=g)
    image1 = torch.stack([img.roll((dy, dx), (1, 2)) for img, (dy, dx) in zip(image0, shift.tolist())])
    y, x = torch.arange(H * W) // W, torch.arange(H * W) % W
    matches = (y + shift[:, :1]) % H * W + (x + shift[:, 1:]) % W
    noise = 0.7 * torch.randn(2, *image0.shape, generator=g)
    return TensorDataset(image0 + noise[0], image1 + noise[1], matches)


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for image0, image1, matches in loader:
            correct += (model(image0, image1).argmax(2) == matches).sum().item()
            total += matches.numel()
    return correct / total


def main():
    torch.manual_seed(66)
    train_loader = DataLoader(image_pairs(480, 1), batch_size=16, shuffle=True)
    val_loader = DataLoader(image_pairs(96, 2), batch_size=48)
    model = LoFTR()
    epochs = 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * len(train_loader))
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for image0, image1, matches in train_loader:
            log_conf = model(image0, image1)
            loss = -log_conf.gather(2, matches.unsqueeze(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            running += loss.item() * len(matches)
        print(f"epoch {epoch}: loss {running / len(train_loader.dataset):.4f}, "
              f"val matching accuracy {evaluate(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
