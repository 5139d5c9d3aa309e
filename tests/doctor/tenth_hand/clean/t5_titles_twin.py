"""Titles of articles by a small T5: the words that are marked as important, in order (loop by hand)."""
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration

PAD, EOS, MARK, WORDS = 0, 1, 2, 24


def articles(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        source, title = [], []
        for _ in range(rng.randint(8, 14)):
            word = rng.randrange(3, 3 + WORDS)
            if rng.random() < 0.25 and len(title) < 4:
                source.append(MARK)
                title.append(word)
            source.append(word)
        rows.append((source, title or [source[0]]))
    return rows


def collate(rows):
    source = [torch.tensor(s + [EOS]) for s, _ in rows]
    labels = [torch.tensor(t + [EOS]) for _, t in rows]
    input_ids = pad_sequence(source, batch_first=True, padding_value=PAD)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }


def train_one_epoch(model, loader, optimizer, scheduler):
    model.train()
    for batch in loader:
        outputs = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels=batch["labels"]),
            labels=batch["labels"],
        )
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return outputs.loss.item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss, tokens, exact, rows, length = 0.0, 0, 0, 0, 0
    for batch in loader:
        count = (batch["labels"] != -100).sum().item()
        loss += model(**batch).loss.item() * count
        tokens += count
        made = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8, do_sample=False)
        for out, label in zip(made.tolist(), batch["labels"].tolist()):
            out = [t for t in out[1:] if t != PAD]
            exact += out == [t for t in label if t != -100]
            length += len(out)
            rows += 1
    return loss / tokens, exact / rows, length / rows


def main():
    torch.manual_seed(61)
    random.seed(61)
    train_loader = DataLoader(articles(640, 1), batch_size=32, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(articles(64, 2), batch_size=32, collate_fn=collate)
    config = T5Config(
        vocab_size=3 + WORDS, d_model=48, d_kv=12, d_ff=96, num_layers=1, num_decoder_layers=1, num_heads=4,
        decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=EOS, dropout_rate=0.05,
    )
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=3 * len(train_loader))
    for epoch in range(3):
        loss = train_one_epoch(model, train_loader, optimizer, scheduler)
        val_loss, exact, length = evaluate(model, val_loader)
        print(f"epoch {epoch} loss {loss:.3f} val {val_loss:.3f} exact {exact:.3f} length {length:.2f}")


if __name__ == "__main__":
    main()
