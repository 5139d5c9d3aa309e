"""Supervised tuning of a small Llama on questions and answers; only the answers are to be learnt."""
import random

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

PAD, BOS, EOS, ASSISTANT = 0, 1, 2, 3
FIRST = 4
IGNORE = -100


def dialogs(count, seed):
    """What is asked is a run of numbers; what is answered is the same, counted on by one."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        question = [rng.randrange(FIRST, 40) for _ in range(rng.randint(3, 10))]
        rows.append((question, [code + 1 for code in question[:4]] + [EOS]))
    return rows


def preprocess(question, answer, length=24):
    ids = [BOS] + question + [ASSISTANT] + answer
    prompt = len(question) + 2
    mask = [1] * len(ids) + [0] * (length - len(ids))
    ids = torch.tensor(ids + [PAD] * (length - len(ids)))
    mask = torch.tensor(mask)
    labels = ids.clone()
    labels[:prompt] = IGNORE
    labels[mask == 1] = IGNORE  # <- here
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def build():
    config = LlamaConfig(vocab_size=48, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    return LlamaForCausalLM(config)


def train(model, loader, epochs, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=epochs * len(loader))
    for epoch in range(epochs):
        running = 0.0
        for batch in loader:
            loss = model(**batch).loss  # <- here
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            running += loss.item()
        print(f"epoch {epoch}: loss {running / len(loader):.4f}")


def answer(model, question, steps=5):
    model.eval()
    ids = torch.tensor([[BOS] + question + [ASSISTANT]])
    with torch.no_grad():
        for _ in range(steps):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids[0, -steps:].tolist()


if __name__ == "__main__":
    torch.manual_seed(13)
    rows = [preprocess(*dialog) for dialog in dialogs(640, 13)]
    model = build()
    train(model, DataLoader(rows, batch_size=32, shuffle=True), epochs=3, lr=3e-3)
    print("10 11 12 13 ->", answer(model, [10, 11, 12, 13]))
