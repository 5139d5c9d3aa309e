"""A GPT-2 of two layers, from a configuration, on invented stories."""
import argparse
import random

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

HEROES, DEEDS, THINGS = ["fox", "girl", "robot", "owl"], ["found", "lost", "built", "hid"], ["boat", "key", "kite", "lamp"]


def stories(count, seed):
    rng = random.Random(seed)
    return [f"the {rng.choice(HEROES)} {rng.choice(DEEDS)} a {rng.choice(THINGS)} . " for _ in range(count)]


class Blocks(Dataset):
    """The stream of characters in blocks: what is read, and what is to be said."""

    def __init__(self, text, vocabulary, length):
        self.ids = torch.tensor([vocabulary[character] for character in text])
        self.length = length

    def __len__(self):
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, index):
        chunk = self.ids[index * self.length : (index + 1) * self.length + 1]
        return {"input_ids": chunk[:-1], "labels": chunk[1:]}  # <- here


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [model(**batch).loss for batch in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--length", type=int, default=48)
    args = parser.parse_args()

    torch.manual_seed(0)
    train_text, valid_text = "".join(stories(700, 1)), "".join(stories(80, 2))
    vocabulary = {character: number for number, character in enumerate(sorted(set(train_text)))}
    train = DataLoader(Blocks(train_text, vocabulary, args.length), batch_size=16, shuffle=True)
    valid = DataLoader(Blocks(valid_text, vocabulary, args.length), batch_size=16)

    config = GPT2Config(vocab_size=len(vocabulary), n_positions=64, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = args.epochs * len(train)
    schedule = get_linear_schedule_with_warmup(optimizer, total // 10, total)
    for epoch in range(args.epochs):
        for batch in train:
            loss = model(**batch).loss  # <- here
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: training {loss.item():.3f}, validation {evaluate(model, valid):.3f}")


if __name__ == "__main__":
    main()
