"""Stars of reviews by a small transformer encoder, padded batches."""
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

config = {
    "d_model": 32,
    "nhead": 4,
    "layers": 2,
    "num_classes": 6,  # <- here
    "lr": 2e-3,
    "epochs": 4,
    "batch_size": 32,
}
GOOD, BAD = ["great", "lovely", "superb", "fresh"], ["awful", "stale", "rude", "cold"]
FILL = ["the", "food", "was", "and", "we", "came", "with", "friends", "on", "a", "monday", "table"]
PAD = 0
VOCAB = {word: number for number, word in enumerate(["<pad>", *GOOD, *BAD, *FILL])}


def write_review(rng):
    stars = rng.randint(1, 5)
    mood = [rng.choice(GOOD if rng.random() < (stars - 1) / 4 else BAD) for _ in range(8)]
    words = mood + [rng.choice(FILL) for _ in range(rng.randint(2, 24))]
    rng.shuffle(words)
    return " ".join(words), stars


class Reviews(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = [write_review(rng) for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        text, stars = self.rows[index]
        ids = torch.tensor([VOCAB[word] for word in text.split()])
        return ids, stars  # <- here


def collate(batch):
    ids, stars = zip(*batch)
    ids = pad_sequence(ids, batch_first=True, padding_value=PAD)
    return {"ids": ids, "mask": ids.eq(PAD), "label": torch.tensor(stars)}


class Encoder(nn.Module):
    """Embeddings, positions and a stack of layers."""

    def __init__(self, vocab, d_model, nhead, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.place = nn.Parameter(0.02 * torch.randn(64, d_model))
        layer = nn.TransformerEncoderLayer(d_model, nhead, 2 * d_model, dropout=0.1, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids, mask=None):
        return self.stack(self.embed(ids) + self.place[: ids.shape[1]], src_key_padding_mask=mask)


class Classifier(nn.Module):
    def __init__(self, encoder, d_model, num_classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, ids, mask):
        states = self.encoder(ids, mask)
        real = (~mask).unsqueeze(-1)
        return self.head((states * real).sum(1) / real.sum(1))


def run(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    total, right, seen = 0.0, 0, 0
    for batch in loader:
        with torch.set_grad_enabled(optimizer is not None):
            logits = model(batch["ids"], batch["mask"])
            loss = criterion(logits, batch["label"])  # <- here
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        total += loss.item() * len(logits)
        right += (logits.argmax(-1) == batch["label"]).sum().item()
        seen += len(logits)
    return total / seen, right / seen


if __name__ == "__main__":
    torch.manual_seed(3)
    train_loader = DataLoader(Reviews(640, 1), config["batch_size"], shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(Reviews(128, 2), config["batch_size"], collate_fn=collate)
    encoder = Encoder(len(VOCAB), config["d_model"], config["nhead"], config["layers"])
    model = Classifier(encoder, config["d_model"], config["num_classes"])  # <- here
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    criterion = nn.CrossEntropyLoss()
    for epoch in range(config["epochs"]):
        train_loss, train_acc = run(model, train_loader, criterion, optimizer)
        valid_loss, valid_acc = run(model, valid_loader, criterion)
        print(f"{epoch}: train {train_loss:.3f} {train_acc:.1%}, valid {valid_loss:.3f} {valid_acc:.1%}")
