import argparse
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

PAD, BOS, EOS = 0, 1, 2


class Statistics(object):
    def __init__(self, loss=0, n_words=0, n_correct=0):
        self.loss, self.n_words, self.n_correct = loss, n_words, n_correct

    def update(self, stat):
        self.loss += stat.loss
        self.n_words += stat.n_words
        self.n_correct += stat.n_correct

    def accuracy(self):
        return 100 * self.n_correct / self.n_words

    def ppl(self):
        return math.exp(min(self.loss / self.n_words, 100))


def parallel_corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(n):
        length = int(torch.randint(2, 13, (1,), generator=g))
        src = torch.randint(3, 23, (length,), generator=g)
        pairs.append((src, torch.cat([torch.tensor([BOS]), 25 - src, torch.tensor([EOS])])))
    return pairs


def collate(pairs):
    pad = nn.utils.rnn.pad_sequence
    return pad([s for s, _ in pairs], padding_value=PAD), pad([t for _, t in pairs], padding_value=PAD)


class NMTModel(nn.Module):
    def __init__(self, vocab=26, size=64):
        super(NMTModel, self).__init__()
        self.src_emb = nn.Embedding(vocab, size, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(vocab, size, padding_idx=PAD)
        self.encoder = nn.LSTM(size, size // 2, bidirectional=True)
        self.decoder = nn.LSTM(size, size)
        self.linear_in = nn.Linear(size, size, bias=False)
        self.linear_out = nn.Linear(2 * size, size, bias=False)
        self.generator = nn.Sequential(nn.Linear(size, vocab), nn.LogSoftmax(dim=-1))

    def forward(self, src, tgt):
        lengths = src.ne(PAD).sum(0)
        packed = nn.utils.rnn.pack_padded_sequence(self.src_emb(src), lengths, enforce_sorted=False)
        memory, state = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(memory, total_length=src.size(0))
        state = tuple(torch.cat([s[0], s[1]], dim=1).unsqueeze(0) for s in state)
        out, _ = self.decoder(self.tgt_emb(tgt), state)
        align = torch.einsum("tbd,sbd->tbs", self.linear_in(out), memory)
        align = align.masked_fill(src.eq(PAD).t().unsqueeze(0), -float("inf")).softmax(-1)
        context = torch.einsum("tbs,sbd->tbd", align, memory)
        return torch.tanh(self.linear_out(torch.cat([context, out], dim=-1)))


class NMTLossCompute(object):
    def __init__(self, generator):
        self.generator = generator
        self.criterion = nn.NLLLoss(ignore_index=PAD, reduction="sum")

    def compute(self, output, tgt):
        scores = self.generator(output.flatten(0, 1))
        gold = tgt[1:].flatten()
        loss = self.criterion(scores, gold)
        keep = gold.ne(PAD)
        correct = scores.max(1)[1].eq(gold).masked_select(keep).sum().item()
        return loss, Statistics(loss.item(), keep.sum().item(), correct)


class Trainer(object):
    def __init__(self, model, optim, scheduler, norm_method="sents", grad_accum_count=1, max_grad_norm=5.0):
        self.model, self.optim, self.scheduler = model, optim, scheduler
        self.norm_method, self.grad_accum_count = norm_method, grad_accum_count
        self.max_grad_norm = max_grad_norm
        self.train_loss = NMTLossCompute(model.generator)

    def train(self, train_iter):
        self.model.train()
        total_stats = Statistics()
        true_batchs, normalization = [], 0
        for i, batch in enumerate(train_iter):
            true_batchs.append(batch)
            if self.norm_method == "tokens":
                normalization += batch[1][1:].ne(PAD).sum().item()
            else:
                normalization += batch[1].size(1)
            if len(true_batchs) == self.grad_accum_count or i + 1 == len(train_iter):
                self._gradient_accumulation(true_batchs, total_stats, normalization)
                true_batchs, normalization = [], 0
        self.scheduler.step()
        return total_stats

    def _gradient_accumulation(self, true_batchs, total_stats, normalization):
        self.optim.zero_grad()
        for src, tgt in true_batchs:
            output = self.model(src, tgt[:-1])
            loss, stats = self.train_loss.compute(output, tgt)
            loss.div(float(tgt.size(1))).backward()
            total_stats.update(stats)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optim.step()

    def validate(self, valid_iter):
        self.model.eval()
        stats = Statistics()
        with torch.no_grad():
            for src, tgt in valid_iter:
                stats.update(self.train_loss.compute(self.model(src, tgt[:-1]), tgt)[1])
        return stats


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-normalization", default="tokens", choices=["sents", "tokens"])
    parser.add_argument("-accum_count", type=int, default=2)
    parser.add_argument("-epochs", type=int, default=6)
    opt = parser.parse_args()
    torch.manual_seed(1234)
    train_iter = DataLoader(parallel_corpus(1600, 1), batch_size=16, shuffle=True, collate_fn=collate)
    valid_iter = DataLoader(parallel_corpus(200, 2), batch_size=50, collate_fn=collate)
    model = NMTModel()
    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optim, [4, 5], gamma=0.5)
    trainer = Trainer(model, optim, scheduler, opt.normalization, opt.accum_count)
    for epoch in range(1, opt.epochs + 1):
        train_stats = trainer.train(train_iter)
        valid_stats = trainer.validate(valid_iter)
        print("Epoch %d, train ppl %.3f acc %.2f, valid ppl %.3f acc %.2f" % (
            epoch, train_stats.ppl(), train_stats.accuracy(), valid_stats.ppl(), valid_stats.accuracy()))
