import random
from collections import Counter

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence

random.seed(3)
torch.manual_seed(3)

GOOD = "lovely great charming moving superb funny warm".split()
BAD = "dull awful boring clumsy weak tedious empty".split()
REST = "the a film story and cast scene with of in plot this that its actor music is was very".split()


def make_review():
    label = random.randint(0, 1)
    n = random.randint(5, 30)
    words = [random.choice(REST) for _ in range(n)]
    for _ in range(max(1, n // 6)):
        words[random.randrange(n)] = random.choice(GOOD if label else BAD)
    return words, label


train_data = [make_review() for _ in range(1200)]
valid_data = [make_review() for _ in range(300)]
counter = Counter(w for words, _ in train_data for w in words)
itos = ["<unk>", "<pad>"] + [w for w, _ in counter.most_common()]
stoi = {w: i for i, w in enumerate(itos)}
PAD = stoi["<pad>"]


class ReviewRNN(nn.Module):
    def __init__(self, vocab_size, emb_dim=24, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=PAD)
        self.rnn = nn.LSTM(emb_dim, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(hidden, 2)

    def forward(self, text, lengths):
        embedded = self.dropout(self.embedding(text))
        output, _ = self.rnn(embedded)
        last = output[torch.arange(len(text)), lengths - 1]
        pooled = output.masked_fill((text == PAD).unsqueeze(-1), float('-inf')).amax(1)
        last = last + pooled
        return torch.log_softmax(self.fc(self.dropout(last)), dim=1)


def batches(data, size=32, shuffle=False):
    data = random.sample(data, len(data)) if shuffle else data
    for start in range(0, len(data), size):
        chunk = data[start : start + size]
        ids = [torch.tensor([stoi.get(w, 0) for w in words]) for words, _ in chunk]
        lengths = torch.tensor([len(each) for each in ids])
        yield pad_sequence(ids, batch_first=True, padding_value=PAD), lengths, torch.tensor([y for _, y in chunk])


def run(model, data, criterion, optimizer=None):
    model.train(optimizer is not None)
    total, hits = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for text, lengths, labels in batches(data, shuffle=optimizer is not None):
            log_probs = model(text, lengths)
            loss = criterion(log_probs, labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(labels)
            hits += (log_probs.argmax(1) == labels).sum().item()
    return total / len(data), hits / len(data)


if __name__ == "__main__":
    model = ReviewRNN(len(itos))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.NLLLoss()
    for epoch in range(3):
        loss, acc = run(model, train_data, criterion, optimizer)
        val_loss, val_acc = run(model, valid_data, criterion)
        print(f"epoch {epoch + 1}: {loss:.3f} {acc:.3f} | {val_loss:.3f} {val_acc:.3f}")
