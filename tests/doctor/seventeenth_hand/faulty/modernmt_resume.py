import os
import random
import tempfile

import torch
from torch import nn

PAD, BOS, EOS = 0, 1, 2


def corpus(n, seed):
    """Source words and their 'translation': reversed order, other vocabulary."""
    rnd = random.Random(seed)
    pairs = []
    for _ in range(n):
        src = [rnd.randrange(3, 18) for _ in range(rnd.randrange(3, 7))]
        pairs.append((src, [20 - w for w in reversed(src)]))
    return pairs


def pad(seqs):
    width = max(map(len, seqs))
    return torch.tensor([s + [PAD] * (width - len(s)) for s in seqs])


def batches(pairs, size, rnd=None):
    order = list(range(len(pairs)))
    if rnd is not None:
        rnd.shuffle(order)
    for i in range(0, len(order), size):
        chunk = [pairs[j] for j in order[i:i + size]]
        yield pad([s for s, _ in chunk]), pad([[BOS] + t + [EOS] for _, t in chunk])


class NMTModel(nn.Module):
    def __init__(self, vocab=21, emb=32, hidden=64):
        super().__init__()
        self.src_emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.encoder = nn.GRU(emb, hidden, batch_first=True)
        self.decoder = nn.GRU(emb, hidden, batch_first=True)
        self.generator = nn.Linear(2 * hidden, vocab)

    def forward(self, src, tgt_in):
        lengths = (src != PAD).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.src_emb(src), lengths, batch_first=True, enforce_sorted=False)
        memory, state = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(memory, batch_first=True, total_length=src.shape[1])
        out, _ = self.decoder(self.tgt_emb(tgt_in), state)
        scores = (out @ memory.transpose(1, 2)).masked_fill((src == PAD).unsqueeze(1), float("-inf"))
        context = scores.softmax(-1) @ memory
        return self.generator(torch.cat([out, context], dim=-1))


class NMTEngineTrainer:
    def __init__(self, model, train_pairs, valid_pairs, lr=4e-3, decay=0.75):
        self.model = model
        self.train_pairs, self.valid_pairs = train_pairs, valid_pairs
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.decay = decay
        self.epoch = 0
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "epoch": self.epoch}, path)

    def load_checkpoint(self, path):
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["model"])
        self.epoch = checkpoint["epoch"]
        print(f"Resumed from epoch {self.epoch}")

    def evaluate(self):
        self.model.eval()
        loss = words = 0
        with torch.no_grad():
            for src, tgt in batches(self.valid_pairs, 64):
                logits = self.model(src, tgt[:, :-1])
                loss += self.criterion(logits.flatten(0, 1), tgt[:, 1:].flatten()).item()
                words += (tgt[:, 1:] != PAD).sum().item()
        return loss / words

    def train(self, last_epoch):
        while self.epoch < last_epoch:
            self.epoch += 1
            self.model.train()
            rnd = random.Random(self.epoch)
            total = words = 0
            for src, tgt in batches(self.train_pairs, 32, rnd):
                logits = self.model(src, tgt[:, :-1])
                n = (tgt[:, 1:] != PAD).sum()
                loss = self.criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
                self.optimizer.zero_grad()
                (loss / n).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
                total += loss.item()
                words += n.item()
            for group in self.optimizer.param_groups:
                group["lr"] *= self.decay
            print(f"Epoch {self.epoch}: train {total / words:.4f}, valid {self.evaluate():.4f}, "
                  f"lr {self.optimizer.param_groups[0]['lr']:.5f}")


if __name__ == "__main__":
    torch.manual_seed(3435)
    train_pairs, valid_pairs = corpus(1600, seed=1), corpus(200, seed=2)
    checkpoint = os.path.join(tempfile.mkdtemp(), "model_checkpoint.pt")

    trainer = NMTEngineTrainer(NMTModel(), train_pairs, valid_pairs)
    trainer.train(last_epoch=8)
    trainer.save(checkpoint)

    resumed = NMTEngineTrainer(NMTModel(), train_pairs, valid_pairs)
    resumed.load_checkpoint(checkpoint)
    resumed.train(last_epoch=10)
