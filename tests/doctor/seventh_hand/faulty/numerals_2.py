"""Translate numbers into the words of a made-up tongue: a transformer of an encoder and a decoder."""
import torch
from torch import nn
from torch.utils.data import DataLoader

from numerals_2_parts.vocab import PAIRS, SOURCE, TARGET, collate


class Translator(nn.Module):
    def __init__(self, d_model=48):
        super().__init__()
        self.source, self.target = nn.Embedding(len(SOURCE), d_model), nn.Embedding(len(TARGET), d_model)
        self.places = nn.Embedding(40, d_model)
        self.transformer = nn.Transformer(d_model, 4, 2, 2, 96, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(d_model, len(TARGET))

    def embed(self, table, ids):
        return table(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, source, target):
        length = target.shape[1]
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        source_pad, target_pad = source.eq(SOURCE["<pad>"]), target.eq(TARGET["<pad>"])
        states = self.transformer(
            self.embed(self.source, source), self.embed(self.target, target), tgt_mask=ahead,
            src_key_padding_mask=source_pad, tgt_key_padding_mask=target_pad, memory_key_padding_mask=source_pad,
        )
        return self.generator(states)


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for source, target in loader:
        logits = model(source, target[:, :-1])
        loss = criterion(logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1))  # <- here
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def greedy(model, source, longest=24):
    model.eval()
    ids = torch.full((len(source), 1), TARGET["<sos>"])
    for _ in range(longest):
        best = model(source, ids)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, best], dim=1)
        if (ids == TARGET["<eos>"]).any(1).all():
            break
    return ids.shape[1]


def main():
    torch.manual_seed(9)
    loader = DataLoader(PAIRS[:800], batch_size=32, shuffle=True, collate_fn=collate)
    held_out = collate(PAIRS[800:832])[0]
    model = Translator()
    criterion = nn.CrossEntropyLoss(ignore_index=0)  # <- here
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    for epoch in range(4):
        loss = train_epoch(model, loader, criterion, optimizer)
        print(f"epoch {epoch}: {loss:.3f}; all translations end after {greedy(model, held_out)} tokens")


if __name__ == "__main__":
    main()
