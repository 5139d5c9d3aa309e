"""Pretrain a small GPT on a drawn language of characters; settings from a dictionary."""
import math

import torch

from mini_lm_mended_parts.model import GPT, GPTConfig
from mini_lm_mended_parts.text import Corpus

config = dict(
    block_size=32,
    batch_size=16,
    gradient_accumulation_steps=4,
    n_layer=2,
    n_head=2,
    n_embd=32,
    dropout=0.0,
    causal=True,
    learning_rate=6e-3,
    weight_decay=0.1,
    max_iters=60,
    warmup_iters=5,
    eval_interval=20,
    grad_clip=1.0,
)


def get_lr(step):
    if step < config["warmup_iters"]:
        return config["learning_rate"] * (step + 1) / config["warmup_iters"]
    ratio = (step - config["warmup_iters"]) / (config["max_iters"] - config["warmup_iters"])
    return config["learning_rate"] * (0.1 + 0.45 * (1 + math.cos(math.pi * ratio)))


@torch.no_grad()
def estimate_loss(model, corpus):
    model.eval()
    out = {}
    for split in ("train", "val"):
        losses = [model(*corpus.get_batch(split, config["batch_size"], config["block_size"]))[1].item() for _ in range(5)]
        out[split] = sum(losses) / len(losses)
    model.train()
    return out


def main():
    torch.manual_seed(1337)
    corpus = Corpus(characters=6000, seed=1)
    keys = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "causal")
    model = GPT(GPTConfig(vocab_size=corpus.vocab_size, **{key: config[key] for key in keys}))
    optimizer = model.configure_optimizers(config["weight_decay"], config["learning_rate"])
    steps = config["gradient_accumulation_steps"]
    for it in range(config["max_iters"]):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it)
        if it % config["eval_interval"] == 0:
            print(it, {split: round(loss, 3) for split, loss in estimate_loss(model, corpus).items()})
        for _ in range(steps):
            x, y = corpus.get_batch("train", config["batch_size"], config["block_size"])
            logits, loss = model(x, y)
            (loss / steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print("end", estimate_loss(model, corpus))


if __name__ == "__main__":
    main()
