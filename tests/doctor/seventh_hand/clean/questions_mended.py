"""Kinds of questions by an LSTM, with Accelerate and accumulation by hand."""
import argparse
import random

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

KINDS = {"who": 0, "where": 1, "when": 2, "why": 3}
FILL = ["did", "the", "king", "queen", "go", "sing", "leave", "build", "old", "tower", "river"]
VOCAB = {word: number + 1 for number, word in enumerate([*KINDS, *FILL])}


def questions(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        word = rng.choice(list(KINDS))
        words = rng.choices(FILL, k=rng.randint(2, 4)) + [word] + rng.choices(FILL, k=rng.randint(3, 8))
        rows.append((torch.tensor([VOCAB[each] for each in words]), KINDS[word]))
    return rows


def collate(rows):
    ids, labels = zip(*rows)
    return {"ids": pad_sequence(ids, batch_first=True), "lengths": torch.tensor([len(each) for each in ids]), "labels": torch.tensor(labels)}


class QuestionLSTM(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCAB) + 1, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, len(KINDS))

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--num_train_epochs", type=int, default=4)
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=8e-3)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)

    train_loader = DataLoader(questions(352, 1), args.per_device_train_batch_size, shuffle=True, collate_fn=collate)
    eval_loader = DataLoader(questions(96, 2), 32, collate_fn=collate)
    model = QuestionLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.num_train_epochs):
        model.train()
        for step, batch in enumerate(train_loader):
            loss = criterion(model(batch["ids"], batch["lengths"]), batch["labels"])
            window = min(args.gradient_accumulation_steps, len(train_loader) - step // args.gradient_accumulation_steps * args.gradient_accumulation_steps)
            accelerator.backward(loss / window)
            if (step + 1) % args.gradient_accumulation_steps == 0 or step + 1 == len(train_loader):
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        right = seen = 0
        for batch in eval_loader:
            with torch.no_grad():
                guess = model(batch["ids"], batch["lengths"]).argmax(-1)
            guess, labels = accelerator.gather_for_metrics((guess, batch["labels"]))
            right, seen = right + (guess == labels).sum().item(), seen + len(labels)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right / seen:.1%}")


if __name__ == "__main__":
    main()
