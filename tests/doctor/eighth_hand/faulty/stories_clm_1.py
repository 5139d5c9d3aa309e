"""A small GPT-2 (from its configuration) learns question and answer pairs of characters."""
import argparse

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

from stories_clm_1_parts.data import QADataset, Tokenizer, make_collator


def train(model, loader, optimizer, scheduler):
    model.train()
    total = 0.0
    for batch in loader:
        loss = model(**batch).loss  # <- here
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def answers(model, dataset, tokenizer, count=40):
    """The share of answers that are right to the letter, the end with them, and of those that end at all."""
    model.eval()
    right = ended = 0
    for question, answer in dataset.pairs[:count]:
        ids = torch.tensor([tokenizer.encode(question + "=")])
        start = ids.size(1)
        for _ in range(6):
            token = model(input_ids=ids).logits[0, -1].argmax()
            ids = torch.cat([ids, token.view(1, 1)], dim=1)
            if int(token) == tokenizer.eos_token_id:
                ended += 1
                break
        right += ids[0, start:].tolist() == tokenizer.encode(answer) + [tokenizer.eos_token_id]
    return right / count, ended / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = Tokenizer()
    train_set, val_set = QADataset(800, 1), QADataset(100, 2)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, collate_fn=make_collator(tokenizer))
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size, n_positions=32, n_embd=48, n_layer=2, n_head=4,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(loader)
    scheduler = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    for epoch in range(args.epochs):
        loss = train(model, loader, optimizer, scheduler)
        if epoch % 2:
            print(f"epoch {epoch}: loss {loss:.4f}, right and ended: {answers(model, val_set, tokenizer)}")


if __name__ == "__main__":
    main()
