"""A decoder-only transformer out of torch's own layers, after the word_language_model example."""
import math

import torch
import torch.nn as nn

torch.manual_seed(1111)
bptt, batch_size, emsize = 24, 16, 32

words = "the king sat on his throne and looked at sea was grey wind cold a ship came in with tide rose old city gate fell no light there".split()
picks = torch.randint(0, len(words), (5000,), generator=torch.Generator().manual_seed(5)).tolist()
corpus = "".join(words[i] + (". " if i % 9 == 8 else " ") for i in picks)
chars = sorted(set(corpus))
data = torch.tensor([chars.index(c) for c in corpus])
train_ids, val_ids = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=256):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(max_len).float().unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)].unsqueeze(1)  # <- here
        return self.dropout(x)


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model, nhead=4, nlayers=2):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, d_model)
        self.pos = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 64, dropout=0.1, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, nlayers)
        self.decoder = nn.Linear(d_model, ntoken)
        self.d_model = d_model

    def forward(self, src):
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(1))
        x = self.pos(self.encoder(src) * math.sqrt(self.d_model))
        x = self.transformer(x, mask=mask)
        return self.decoder(x)


def get_batch(source):
    starts = torch.randint(0, len(source) - bptt - 1, (batch_size,))
    x = torch.stack([source[s : s + bptt] for s in starts])
    y = torch.stack([source[s + 1 : s + 1 + bptt] for s in starts])
    return x, y


model = TransformerModel(len(chars), emsize)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def evaluate():
    model.eval()
    losses = []
    with torch.no_grad():
        for _ in range(10):
            x, y = get_batch(val_ids)
            losses.append(criterion(model(x).view(-1, len(chars)), y.view(-1)).item())
    model.train()
    return sum(losses) / len(losses)


model.train()
for step in range(240):
    x, y = get_batch(train_ids)
    output = model(x)
    loss = criterion(output.view(-1, len(chars)), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if step % 60 == 59:
        print(f"step {step + 1} loss {loss.item():.3f} valid {evaluate():.3f}")
