"""Pretraining in miniature: python train.py"""
import math
from dataclasses import dataclass

import torch

from nano_lm_1_parts.model import GPT, GPTConfig


@dataclass
class TrainConfig:
    steps: int = 80
    micro_batch: int = 8
    accumulate: int = 2
    max_lr: float = 3e-3
    min_lr: float = 3e-4
    warmup: int = 8
    clip: float = 1.0
    weight_decay: float = 0.1


def tokens(n, seed):
    """A walk on 40 words: each is followed by one of three."""
    g = torch.Generator().manual_seed(seed)
    follow = torch.randint(0, 40, (40, 3), generator=torch.Generator().manual_seed(9))
    out, now = [], 0
    for choice in torch.randint(0, 3, (n,), generator=g).tolist():
        now = int(follow[now, choice])
        out.append(now)
    return torch.tensor(out)


def learning_rate(step, cfg):
    if step < cfg.warmup:
        return cfg.max_lr * (step + 1) / cfg.warmup
    ratio = (step - cfg.warmup) / (cfg.steps - cfg.warmup)
    return cfg.min_lr + 0.5 * (cfg.max_lr - cfg.min_lr) * (1 + math.cos(math.pi * ratio))


def batch(data, cfg, block):
    at = torch.randint(0, len(data) - block - 1, (cfg.micro_batch,))
    return torch.stack([data[i : i + block] for i in at]), torch.stack([data[i + 1 : i + 1 + block] for i in at])


def main():
    torch.manual_seed(1337)
    cfg, model_cfg = TrainConfig(), GPTConfig()
    train, val = tokens(6000, 1), tokens(1500, 2)
    model = GPT(model_cfg)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": cfg.weight_decay}, {"params": rest, "weight_decay": 0.0}], lr=cfg.max_lr, betas=(0.9, 0.95))  # <- here
    for step in range(cfg.steps):
        lr = learning_rate(step, cfg)  # <- here
        model.train()
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(cfg.accumulate):
            x, y = batch(train, cfg, model_cfg.block)
            _, loss = model(x, y)
            (loss / cfg.accumulate).backward()
            total += loss.item() / cfg.accumulate
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()  # <- here
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                val_loss = sum(model(*batch(val, cfg, model_cfg.block))[1].item() for _ in range(5)) / 5
            print(f"step {step + 1} lr {lr:.2e} norm {norm.item():.2f} loss {total:.3f} val {val_loss:.3f}")


if __name__ == "__main__":
    main()
