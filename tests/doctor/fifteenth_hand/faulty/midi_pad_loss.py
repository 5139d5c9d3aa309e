import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS = 0, 1, 2
VOCAB = 32
MAX_LEN = 40


class MidiDataset(Dataset):
    """Short pieces: a walk over a scale whose step depends on the last two notes."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.pieces = []
        for _ in range(n):
            notes = [rng.randint(3, VOCAB - 1), rng.randint(3, VOCAB - 1)]
            for _ in range(rng.randint(4, 32)):
                nxt = (notes[-1] * 2 + notes[-2]) % (VOCAB - 3) + 3
                if rng.random() < 0.1:
                    nxt = rng.randint(3, VOCAB - 1)
                notes.append(nxt)
            self.pieces.append([BOS] + notes + [EOS])

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, idx):
        seq = self.pieces[idx][:MAX_LEN]
        seq = torch.tensor(seq + [PAD] * (MAX_LEN + 1 - len(seq)))
        return seq[:-1], seq[1:]


class MusicLM(nn.Module):
    def __init__(self, d=64, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(MAX_LEN, d)
        layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(MAX_LEN))

    def forward(self, src):
        x = self.tok(src) + self.pos(torch.arange(src.size(1)))
        return self.head(self.norm(self.blocks(x, mask=self.mask, is_causal=True)))


def get_logits_loss(model, batch, loss_fn):
    src, tgt = batch
    logits = model(src)
    return logits, loss_fn(logits.transpose(1, 2), tgt)


def val_loop(model, dataloader, loss_fn):
    model.eval()
    loss_sum, hit, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in dataloader:
            logits, loss = get_logits_loss(model, batch, loss_fn)
            notes = batch[1] != PAD
            loss_sum += loss.item() * notes.sum().item()
            hit += (logits.argmax(-1) == batch[1])[notes].sum().item()
            count += notes.sum().item()
    return loss_sum / count, hit / count


def train(epochs=5):
    torch.manual_seed(0)
    train_dl = DataLoader(MidiDataset(850, 1), batch_size=32, shuffle=True, drop_last=True)
    val_dl = DataLoader(MidiDataset(128, 2), batch_size=32)
    model = MusicLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=epochs * len(train_dl))
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        avg_train_loss = 0.0
        for batch in train_dl:
            _, loss = get_logits_loss(model, batch, loss_fn)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            avg_train_loss += loss.item() / len(train_dl)
        val_loss, val_acc = val_loop(model, val_dl, loss_fn)
        print(f"EPOCH {epoch + 1}/{epochs}: train_loss={avg_train_loss:.4f} val_loss={val_loss:.4f} note_acc={val_acc:.4f}")


if __name__ == "__main__":
    train()
