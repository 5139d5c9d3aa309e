"""Low-rank adapters by peft on a small BERT that was pretrained here, for moods of sentences."""
import random

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

WORDS = {word: number + 3 for number, word in enumerate("glad merry proud sad angry tired we they you feel are seem today very so not".split())}
PAD, CLS, SEP = 0, 1, 2


def sentences(count, seed, negate):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        happy, turned = rng.randrange(2), negate and rng.random() < 0.5
        mood = rng.choice("glad merry proud".split() if happy else "sad angry tired".split())
        words = [rng.choice(["we", "they", "you"]), rng.choice(["feel", "are", "seem"]), *(["not"] if turned else []), rng.choice(["very", "so"]), mood]
        words += ["today"] * rng.randint(0, 2)
        rows.append(([CLS, *(WORDS[word] for word in words), SEP], happy ^ turned))
    return rows


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long(), "labels": torch.tensor([int(label) for _, label in rows])}


def loop(model, optimizer, loader, epochs, scheduler=None):
    model.train()
    for _ in range(epochs):
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def accuracy(model, rows):
    model.eval()
    batch = collate(rows)
    return (model(**batch).logits.argmax(-1) == batch["labels"]).float().mean().item()


def main():
    torch.manual_seed(23)
    config = BertConfig(vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16, num_labels=2)
    model = BertForSequenceClassification(config)
    plain = DataLoader(sentences(320, 1, negate=False), batch_size=16, shuffle=True, collate_fn=collate)
    print("pretrained:", loop(model, torch.optim.AdamW(model.parameters(), lr=2e-3), plain, 2))

    train_rows, test_rows = sentences(480, 2, negate=True), sentences(96, 3, negate=True)
    loader = DataLoader(train_rows, batch_size=16, shuffle=True, collate_fn=collate)
    model = get_peft_model(model, LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["query", "value"]))
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 6, 3 * len(loader))
    print("tuned:", loop(model, optimizer, loader, 3, scheduler), f"accuracy {accuracy(model, test_rows):.1%}")


if __name__ == "__main__":
    main()
