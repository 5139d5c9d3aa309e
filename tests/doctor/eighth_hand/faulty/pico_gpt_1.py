"""Train a small GPT on drawn code-like text."""
import math

import torch

from pico_gpt_1_parts.model import GPT, GPTConfig
from pico_gpt_1_parts.text import get_batch, load_text

max_iters, eval_interval, gradient_accumulation_steps = 100, 25, 4
learning_rate, min_lr, warmup_iters = 4e-3, 4e-4, 10
batch_size, block_size, grad_clip, weight_decay = 6, 32, 1.0, 0.1


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model, splits, iters=4):
    out = {}
    model.eval()
    for name, data in splits.items():
        own = torch.Generator().manual_seed(0)
        losses = [model(*get_batch(data, batch_size, block_size, own))[1].item() for _ in range(iters)]
        out[name] = sum(losses) / len(losses)
    model.train()
    return out


def main():
    torch.manual_seed(1337)
    train_data, val_data, vocab_size = load_text()
    splits = {"train": train_data, "val": val_data}
    model = GPT(GPTConfig(vocab_size=vocab_size, block_size=block_size))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    nodecay = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": weight_decay}, {"params": nodecay, "weight_decay": 0.0}], lr=learning_rate, betas=(0.9, 0.95)
    )
    for it in range(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it)
        for micro_step in range(gradient_accumulation_steps):
            X, Y = get_batch(train_data, batch_size, block_size)
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (it + 1) % eval_interval == 0:
            losses = estimate_loss(model, splits)
            print(f"step {it + 1}: train {losses['train']:.4f}, val {losses['val']:.4f}, norm {norm:.2f}")


main()
