"""A very small GPT that learns to add, trained on the answers alone."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

# ---- settings
batch_size = 24
grad_accum = 4
max_iters = 160
warmup_iters = 20
learning_rate, min_lr = 4e-3, 4e-4
weight_decay = 0.1
grad_clip = 1.0
eval_interval = 40
seed = 1337
# ----

chars = "0123456789+=$ "  # $ ends an answer, the blank pads
stoi = {c: i for i, c in enumerate(chars)}
PAD = stoi[" "]


@dataclass
class Config:
    vocab: int = len(chars)
    block: int = 12
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.proj = nn.Linear(c.n_embd, c.n_embd)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))
        self.n_head, self.dropout = c.n_head, c.dropout

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wte, self.wpe = nn.Embedding(c.vocab, c.n_embd), nn.Embedding(c.block, c.n_embd)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.head = nn.Linear(c.n_embd, c.vocab, bias=False)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.05)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))

    def configure_optimizer(self):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        plain = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def example(a, b):
    prompt = f"{a}+{b}="
    return prompt, prompt + f"{a + b}$"


def encode(pairs, block):
    """Inputs, and next tokens of which those of the prompt and of the padding are -1."""
    x = torch.full((len(pairs), block), PAD)
    y = torch.full((len(pairs), block), -1)
    for i, (prompt, text) in enumerate(pairs):
        ids = torch.tensor([stoi[c] for c in text])
        x[i, : len(ids) - 1] = ids[:-1]
        y[i, : len(ids) - 1] = ids[1:]
        y[i, : len(prompt) - 1] = -1
    return x, y


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


torch.manual_seed(seed)
config = Config()
everything = [(a, b) for a in range(60) for b in range(60)]
order = torch.randperm(len(everything)).tolist()
train = [example(*everything[i]) for i in order[400:]]
held_out = [example(*everything[i]) for i in order[:400]]
model = GPT(config)
optimizer = model.configure_optimizer()
lr_decay_iters = max_iters


def get_batch():
    return encode([train[i] for i in torch.randint(len(train), (batch_size,)).tolist()], config.block)


@torch.no_grad()
def evaluate():
    model.eval()
    x, y = encode(held_out, config.block)
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1).item()
    right = ((logits.argmax(-1) == y) | (y == -1)).all(1).float().mean().item()
    model.train()
    return loss, right


start = time.time()
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    micro = [get_batch() for _ in range(grad_accum)]
    n_tokens = sum((y != -1).sum() for _, y in micro)
    for x, y in micro:
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum") / n_tokens
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if (it + 1) % eval_interval == 0:
        loss, right = evaluate()
        print(f"iter {it + 1}: held-out loss {loss:.3f}, whole answers right {right:.3f}, lr {get_lr(it):.1e}, {time.time() - start:.1f}s")
