import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2024)
N_MOTIONS, AUDIO_DIM, COEF_DIM = 40, 8, 6


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=600):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        x = x + self.pe[:, :x.shape[1], :]
        return self.dropout(x)


class MotionNetwork(nn.Module):
    """Audio features -> motion coefficients of the whole window."""

    def __init__(self, feature_dim=48, n_heads=4, n_layers=2):
        super().__init__()
        self.audio_proj = nn.Linear(AUDIO_DIM, feature_dim)
        self.style_proj = nn.Linear(4, feature_dim)
        self.PE = PositionalEncoding(feature_dim)
        layer = nn.TransformerEncoderLayer(feature_dim, n_heads, 2 * feature_dim, dropout=0.1,
                                           activation="gelu", batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, n_layers, norm=nn.LayerNorm(feature_dim),
                                                 enable_nested_tensor=False)
        self.motion_dec = nn.Linear(feature_dim, COEF_DIM)

    def forward(self, audio, style):
        x = self.audio_proj(audio) + self.style_proj(style).unsqueeze(1)
        return self.motion_dec(self.transformer(self.PE(x)))


def synthesize(n, seed):
    g = torch.Generator().manual_seed(seed)
    audio = torch.randn(n, N_MOTIONS, AUDIO_DIM, generator=g)
    audio = (audio + audio.roll(1, dims=1) + audio.roll(-1, dims=1)) / math.sqrt(3)
    style = torch.randn(n, 4, generator=g)
    mixing = torch.randn(AUDIO_DIM, COEF_DIM, generator=torch.Generator().manual_seed(5)) / math.sqrt(AUDIO_DIM)
    t = torch.arange(N_MOTIONS).float()
    head = torch.stack([torch.sin(2 * math.pi * t / p) for p in (40.0, 25.0, 16.0, 12.0, 10.0, 8.0)], dim=-1)
    motion = torch.tanh(audio @ mixing) + head * (1 + 0.3 * style[:, :1, None])
    return audio, style, motion + 0.05 * torch.randn(motion.shape, generator=g)


def velocity_loss(pred, target):
    return nn.functional.mse_loss(pred[:, 1:] - pred[:, :-1], target[:, 1:] - target[:, :-1])


def evaluate(model, loader):
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for audio, style, motion in loader:
            total += (model(audio, style) - motion).pow(2).mean().item() * len(audio)
            n += len(audio)
    return total / n


def main():
    audio, style, motion = synthesize(640, seed=1)
    mean, std = motion.mean((0, 1)), motion.std((0, 1))
    train_loader = DataLoader(TensorDataset(audio, style, (motion - mean) / std), batch_size=32, shuffle=True)
    audio, style, motion = synthesize(160, seed=2)
    val_loader = DataLoader(TensorDataset(audio, style, (motion - mean) / std), batch_size=80)

    model = MotionNetwork()
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(1, 7):
        model.train()
        running = 0.0
        for audio, style, motion in train_loader:
            pred = model(audio, style)
            loss = nn.functional.mse_loss(pred, motion) + 0.5 * velocity_loss(pred, motion)
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            running += loss.item() * len(audio)
        print(f"epoch {epoch}: train {running / len(train_loader.dataset):.4f}, "
              f"val vertex error {evaluate(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
