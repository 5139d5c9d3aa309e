"""A small GPT on made stories, by hand: blocks, recompute, accumulation, warm-up and cosine, bits per character."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

BLOCK, BATCH, ACCUM, UPDATES, WARMUP, LR = 32, 12, 2, 30, 5, 3e-3


def stories(sentences, seed):
    rng = random.Random(seed)
    who = ["the fox", "a miller", "her aunt", "the old king", "a sparrow", "his brother"]
    did = ["saw", "lost", "sold", "painted", "followed", "hid"]
    what = ["a lamp", "the river", "three coins", "a red door", "the moon", "some bread"]
    when = ["at dawn", "in winter", "last week", "once more", "too late"]
    return " ".join(f"{rng.choice(who)} {rng.choice(did)} {rng.choice(what)} {rng.choice(when)}." for _ in range(sentences))


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, dim=64, layers=2, heads=4, dropout=0.0):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(BLOCK, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for block in self.blocks:
            if self.training:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x)
        logits = self.head(self.ln(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def get_batch(data):
    ix = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    pieces = torch.stack([data[i : i + BLOCK + 1] for i in ix])
    return pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def bits_per_character(model, data):
    model.eval()
    pieces = data[: (len(data) - 1) // BLOCK * BLOCK + 1]
    x, y = pieces[:-1].view(-1, BLOCK), pieces[1:].view(-1, BLOCK)
    _, loss = model(x, y)
    model.train()
    return loss.item() / math.log(2)


torch.manual_seed(1337)
train_text, val_text = stories(900, 1), stories(80, 2)
chars = sorted(set(train_text))
stoi = {c: i for i, c in enumerate(chars)}
train_data = torch.tensor([stoi[c] for c in train_text])
val_data = torch.tensor([stoi[c] for c in val_text])

model = GPT(len(chars))
decay = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=LR)
for update in range(UPDATES):
    progress = (update - WARMUP) / (UPDATES - WARMUP)
    rate = LR * (update + 1) / WARMUP if update < WARMUP else LR * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    for _ in range(ACCUM):
        _, loss = model(*get_batch(train_data))
        (loss / ACCUM).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if update % 10 == 9:
        print(f"update {update + 1} loss {loss.item():.3f} bits {bits_per_character(model, val_data):.3f}")
