"""The word language model example: an LSTM, truncated backpropagation, manual SGD, evaluation in between."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
vocabulary, bptt = 50, 10


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(vocabulary, 16)
        self.rnn = nn.LSTM(16, 16, 2, dropout=0.2)
        self.decoder = nn.Linear(16, vocabulary)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        return nn.functional.log_softmax(self.decoder(output).view(-1, vocabulary), dim=1), hidden


def batchify(data, bsz):
    return data[: len(data) // bsz * bsz].view(bsz, -1).t().contiguous()


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


train_data, val_data = batchify(torch.randint(0, 50, (800,)), 8), batchify(torch.randint(0, 50, (160,)), 8)
model, criterion, lr = RNNModel(), nn.NLLLoss(), 0.5
zeros = torch.zeros(2, 8, 16)
for _epoch in range(2):
    model.train()
    hidden = (zeros, zeros)
    for i in range(0, train_data.size(0) - 1, bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    model.eval()
    with torch.no_grad():
        hidden = (zeros, zeros)
        for i in range(0, val_data.size(0) - 1, bptt):
            data, targets = get_batch(val_data, i)
            output, hidden = model(data, hidden)
            criterion(output, targets).item()
