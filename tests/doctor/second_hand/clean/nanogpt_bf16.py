"""A GPT in nanoGPT's manner: random blocks of one long text, bfloat16 autocast, accumulation, cosine after a warm-up."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
batch_size = 8
block_size = 24
gradient_accumulation_steps = 3
max_iters = 12
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 3
eval_interval = 6
grad_clip = 1.0
dtype = "bfloat16"
# -----------------------------------------------------------------------------
torch.manual_seed(1337)
ctx = torch.autocast("cpu", dtype=torch.bfloat16) if dtype == "bfloat16" else nullcontext()
g = torch.Generator().manual_seed(0)
table = torch.randint(0, 40, (40, 2), generator=g)
stream = [0]
for flip in torch.randint(0, 2, (4000,), generator=g).tolist():
    stream.append(int(table[stream[-1], flip]))
data = torch.tensor(stream)
train_data, val_data = data[:3600], data[3600:]


def get_batch(split):
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self, vocab=40, dim=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(block_size, dim)
        layer = nn.TransformerEncoderLayer(
            dim, 2, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.h = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, idx, targets=None):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.lm_head(self.ln_f(self.h(x, mask=mask, is_causal=True)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(4)
        for k in range(4):
            X, Y = get_batch(split)
            with ctx:
                _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


model = GPT()
named = {n: p for n, p in model.named_parameters() if p.requires_grad}
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
    ],
    lr=learning_rate,
    betas=(0.9, 0.95),
)
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    for _micro_step in range(gradient_accumulation_steps):
        X, Y = get_batch("train")
        with ctx:
            _, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
