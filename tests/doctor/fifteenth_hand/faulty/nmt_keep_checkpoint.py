import argparse
import os
import tempfile
from collections import deque

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

PAD, BOS = 0, 1
VOCAB, LENGTH = 22, 6


def corpus(n, seed):
    """The target is the source backwards, in other words, with some wrong ones."""
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(2, VOCAB, (n, LENGTH), generator=g)
    table = torch.randperm(VOCAB - 2, generator=torch.Generator().manual_seed(9)) + 2
    tgt = table[src.flip(1) - 2]
    wrong = torch.rand(tgt.shape, generator=g) < 0.1
    tgt = torch.where(wrong, torch.randint(2, VOCAB, tgt.shape, generator=g), tgt)
    return TensorDataset(src, torch.cat([torch.full((n, 1), BOS), tgt], dim=1))


class NMTModel(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(VOCAB, d), nn.Embedding(VOCAB, d)
        self.encoder = nn.GRU(d, d // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.bridge, self.generator = nn.Linear(d, d), nn.Linear(2 * d, VOCAB)

    def forward(self, src, tgt_in):
        memory, h = self.encoder(self.src_emb(src))
        init = torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=1))).unsqueeze(0)
        out, _ = self.decoder(self.tgt_emb(tgt_in), init)
        attn = torch.softmax(out @ memory.transpose(1, 2) / out.size(-1) ** 0.5, dim=-1)
        return self.generator(torch.cat([out, attn @ memory], dim=-1))


class ModelSaver:
    def __init__(self, base_path, keep_checkpoint):
        self.base_path, self.keep_checkpoint = base_path, keep_checkpoint
        self.checkpoint_queue = deque()

    def path(self, step):
        return f"{self.base_path}_step_{step}.pt"

    def save(self, model, step, best_step):
        torch.save(model.state_dict(), self.path(step))
        self.checkpoint_queue.append(step)
        while len(self.checkpoint_queue) > self.keep_checkpoint:
            todel = self.checkpoint_queue.popleft()
            os.remove(self.path(todel))

    def to_translate_with(self, best_step):
        return best_step if os.path.exists(self.path(best_step)) else self.checkpoint_queue[-1]


def ppl_acc(model, loader, criterion):
    model.eval()
    loss, hit, n = 0.0, 0, 0
    with torch.no_grad():
        for src, tgt in loader:
            logits = model(src, tgt[:, :-1])
            loss += criterion(logits.flatten(0, 1), tgt[:, 1:].flatten()).item() * tgt[:, 1:].numel()
            hit += (logits.argmax(-1) == tgt[:, 1:]).sum().item()
            n += tgt[:, 1:].numel()
    return torch.tensor(loss / n).exp().item(), hit / n


def main(opt):
    torch.manual_seed(opt.seed)
    train_iter = DataLoader(corpus(600, 1), batch_size=32, shuffle=True)
    valid_iter, test_iter = DataLoader(corpus(300, 2), batch_size=100), DataLoader(corpus(500, 3), batch_size=100)
    model = NMTModel()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optim = torch.optim.Adam(model.parameters(), lr=4e-3)
    saver = ModelSaver(os.path.join(tempfile.mkdtemp(), "model"), opt.keep_checkpoint)
    best_ppl, best_step, tolerance, step = float("inf"), 0, opt.early_stopping, 0
    while tolerance > 0 and step < opt.train_steps:
        for src, tgt in train_iter:
            model.train()
            loss = criterion(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optim.step()
            step += 1
            if step % opt.save_checkpoint_steps == 0:
                ppl, acc = ppl_acc(model, valid_iter, criterion)
                if ppl < best_ppl:
                    best_ppl, best_step, tolerance = ppl, step, opt.early_stopping
                else:
                    tolerance -= 1
                print(f"Step {step}; train xent {loss.item():.3f}; validation ppl {ppl:.4f} acc {acc:.4f}; patience {tolerance}")
                saver.save(model, step, best_step)
                if tolerance == 0:
                    print(f"Early stopping, the best was step {best_step}; on disk: {sorted(saver.checkpoint_queue)}")
                    break
    step = saver.to_translate_with(best_step)
    model.load_state_dict(torch.load(saver.path(step)))
    print(f"translating with step {step}: test ppl %.4f acc %.4f" % ppl_acc(model, test_iter, criterion))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep_checkpoint", type=int, default=3)
    parser.add_argument("--early_stopping", type=int, default=6)
    parser.add_argument("--save_checkpoint_steps", type=int, default=40)
    parser.add_argument("--train_steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=2)
    main(parser.parse_args())
