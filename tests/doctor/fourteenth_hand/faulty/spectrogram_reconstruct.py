import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)

T, FEAT = 16, 16
mixing = torch.randn(FEAT, FEAT) / math.sqrt(FEAT)


def make(n):
    clean = torch.randn(n, T, FEAT)
    source = torch.flip(clean, dims=[1]) @ mixing + 0.05 * torch.randn(n, T, FEAT)
    return TensorDataset(source, clean)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(max_len).unsqueeze(1).float()
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(100.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer('pe', pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class TransformerReconstruct(nn.Module):
    def __init__(self, feature_size=48, num_layers=1, dropout=0.0, nhead=4, output_dim=FEAT):
        super(TransformerReconstruct, self).__init__()
        self.model_type = 'Transformer'
        self.src_mask = None
        self.inp = nn.Linear(FEAT, feature_size)
        self.pos_encoder = PositionalEncoding(feature_size)
        self.encoder_layer = nn.TransformerEncoderLayer(d_model=feature_size, nhead=nhead, dim_feedforward=96, dropout=dropout, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(self.encoder_layer, num_layers=num_layers)
        self.decoder = nn.Linear(feature_size, output_dim)

    def forward(self, src):
        if self.src_mask is None or self.src_mask.size(0) != src.size(1):
            self.src_mask = nn.Transformer.generate_square_subsequent_mask(src.size(1))
        src = self.pos_encoder(self.inp(src))
        output = self.transformer_encoder(src, self.src_mask)
        return self.decoder(output)


train_set, test_set = make(1000), make(200)
train_loader = DataLoader(train_set, batch_size=40, shuffle=True)
test_loader = DataLoader(test_set, batch_size=100)
model = TransformerReconstruct()
criterion = nn.MSELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=6, gamma=0.5)

for epoch in range(12):
    model.train()
    total = 0.0
    for src, tgt in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(src), tgt)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(src)
    scheduler.step()

    model.eval()
    test = 0.0
    with torch.no_grad():
        for src, tgt in test_loader:
            test += criterion(model(src), tgt).item() * len(src)
    if epoch % 3 == 2:
        print(f"epoch {epoch} train {total / len(train_set):.4f} test {test / len(test_set):.4f}")
