# Character model with gradient accumulation, warmup + cosine, checkpoints, and a resume in the middle
# (the job is stopped after half of the steps as the queue would do, and started again from the checkpoint).
import math
import os
import random

import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
out_dir = "out"
batch_size = 16          # micro batch
grad_accum_steps = 4
block_size = 32
n_embd, n_head, n_layer = 48, 4, 1
max_iters, warmup_iters = 80, 8
learning_rate, min_lr = 1e-2, 1e-3
eval_interval, eval_iters = 20, 6
grad_clip = 1.0
# -----------------------------------------------------------------------------

rng = random.Random(0)
NUMBERS = "two three four five six seven eight nine ten eleven twelve twenty".split()
COLOURS = "green brown blue red black white yellow silver".split()
THINGS = "bottles kettles hats boats lanterns pigeons barrels".split()
PLACES = "hanging on the wall|floating down the stream|standing on the bridge|sitting in the tree|rolling along the road".split("|")
text = "".join(
    f"{rng.choice(NUMBERS)} {rng.choice(COLOURS)} {rng.choice(THINGS)} {rng.choice(PLACES)}. " for _ in range(260)
)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
n = int(0.9 * len(data))
splits = {"train": data[:n], "val": data[n:]}


def get_batch(split):
    d = splits[split]
    ix = torch.randint(len(d) - block_size, (batch_size,))
    x = torch.stack([d[i:i + block_size] for i in ix])
    y = torch.stack([d[i + 1:i + block_size + 1] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln_2(x))


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(chars), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    out = {s: sum(model(*get_batch(s)).item() for _ in range(eval_iters)) / eval_iters for s in splits}
    model.train()
    return out


def lr_factor(it):
    if it < warmup_iters:
        return (it + 1) / warmup_iters
    ratio = min(1.0, (it - warmup_iters) / (max_iters - warmup_iters))
    floor = min_lr / learning_rate
    return floor + 0.5 * (1 - floor) * (1 + math.cos(math.pi * ratio))


def train(stop_at):
    model = CharLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    iter_num, best_val_loss = 0, float("inf")
    path = os.path.join(out_dir, "ckpt.pt")
    if os.path.exists(path):
        ckpt = torch.load(path)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        scheduler.load_state_dict(ckpt["scheduler"])
        iter_num, best_val_loss = ckpt["iter_num"], ckpt["best_val_loss"]
        print(f"resumed at {iter_num}")

    while iter_num < stop_at:
        optimizer.zero_grad(set_to_none=True)
        for micro_step in range(grad_accum_steps):
            X, Y = get_batch("train")
            loss = model(X, Y)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        scheduler.step()
        iter_num += 1
        if iter_num % eval_interval == 0:
            losses = estimate_loss(model)
            print(f"iter {iter_num} train {losses['train']:.3f} val {losses['val']:.3f} lr {scheduler.get_last_lr()[0]:.5f}")
            best_val_loss = min(best_val_loss, losses["val"])
            torch.save({
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "iter_num": iter_num,
                "best_val_loss": best_val_loss,
            }, path)
    return best_val_loss


if __name__ == "__main__":
    torch.manual_seed(1337)
    os.makedirs(out_dir, exist_ok=True)
    if os.path.exists(os.path.join(out_dir, "ckpt.pt")):
        os.remove(os.path.join(out_dir, "ckpt.pt"))
    train(stop_at=max_iters // 2)
    best = train(stop_at=max_iters)
    print(f"best val loss {best:.3f}")
