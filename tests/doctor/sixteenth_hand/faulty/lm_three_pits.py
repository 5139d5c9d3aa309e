import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

PAD, BOS, EOS = 0, 1, 2


class TinyLM(nn.Module):
    def __init__(self, vocab=32, d=32, nlayer=1, nhead=2, max_len=20):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(max_len, d)
        enc_layer = nn.TransformerEncoderLayer(d_model=d, nhead=nhead, dim_feedforward=64, batch_first=True,
                                               dropout=0.0, norm_first=True)
        self.enc = nn.TransformerEncoder(enc_layer, num_layers=nlayer, enable_nested_tensor=False)
        self.proj = nn.Linear(d, vocab)

    def forward(self, x, pad_mask=None, causal_mask=None):
        B, T = x.shape
        pos_id = torch.arange(T, device=x.device).unsqueeze(0).expand(B, T)
        h = self.tok(x) + self.pos(pos_id)
        h = self.enc(h, mask=causal_mask, src_key_padding_mask=pad_mask)
        return self.proj(h)


def make_batch(B, T, vocab):
    """BOS + a run of token numbers with a fixed step + EOS + PAD."""
    x = torch.full((B, T), PAD, dtype=torch.long)
    for b in range(B):
        L = int(torch.randint(5, T - 1, (1,)))
        start, step = int(torch.randint(0, vocab - 3, (1,))), int(torch.randint(1, 4, (1,)))
        core = 3 + (start + step * torch.arange(L - 2)) % (vocab - 3)
        x[b, :L] = torch.cat([torch.tensor([BOS]), core, torch.tensor([EOS])])
    return x


def subsequent_mask(T):
    return torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)


def lm_loss(model, x):
    inp, labels = x, x
    logits = model(inp, pad_mask=inp.eq(PAD))
    return F.cross_entropy(logits.transpose(1, 2), labels)


@torch.no_grad()
def continuation_accuracy(model, n, T, vocab):
    """Given BOS and three tokens, is the fourth right?"""
    model.eval()
    x = make_batch(n, T, vocab)
    x = x[x[:, 4] > EOS]
    prefix = x[:, :4]
    logits = model(prefix, pad_mask=prefix.eq(PAD), causal_mask=subsequent_mask(4))
    return (logits[:, -1].argmax(-1) == x[:, 4]).float().mean().item()


def run(steps):
    vocab, T, B = 32, 20, 64
    model = TinyLM(vocab=vocab, max_len=T)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for it in range(1, steps + 1):
        model.train()
        loss = lm_loss(model, make_batch(B, T, vocab))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % (steps // 5) == 0:
            acc = continuation_accuracy(model, 200, T, vocab)
            print(f"step {it} loss {loss.item():.3f} ppl {math.exp(min(20.0, loss.item())):.2f} next token acc {acc:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    run(parser.parse_args().steps)
