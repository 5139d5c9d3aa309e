"""Translate drawn phrases: each word is replaced and their order reversed."""
import math

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BOS, EOS, FIRST, VOCAB = 0, 1, 2, 3, 30


def phrases(count, seed):
    own = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(3, 11, (1,), generator=own))
        words = torch.randint(FIRST, VOCAB, (length,), generator=own)
        answer = VOCAB + FIRST - 1 - words.flip(0)
        yield torch.cat([words, torch.tensor([EOS])]), torch.cat([torch.tensor([BOS]), answer, torch.tensor([EOS])])


def collate_fn(batch):
    src_batch, tgt_batch = zip(*batch)
    return pad_sequence(src_batch, padding_value=PAD, batch_first=True), pad_sequence(tgt_batch, padding_value=PAD, batch_first=True)


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size, maxlen=64):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        table = torch.zeros(maxlen, emb_size)
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.register_buffer("pos_embedding", table)

    def forward(self, x):
        return x + self.pos_embedding[: x.size(1)]


class Seq2SeqTransformer(nn.Module):
    def __init__(self, emb_size=64, nhead=4, layers=2):
        super().__init__()
        self.transformer = nn.Transformer(  # <- here
            d_model=emb_size, nhead=nhead, num_encoder_layers=layers, num_decoder_layers=layers,  # <- here
            dim_feedforward=128, dropout=0.05,  # <- here
        )
        self.generator = nn.Linear(emb_size, VOCAB)
        self.src_tok_emb, self.tgt_tok_emb = nn.Embedding(VOCAB, emb_size), nn.Embedding(VOCAB, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size)

    def forward(self, src, tgt):
        src_padding, tgt_padding = src == PAD, tgt == PAD
        tgt_mask = torch.triu(torch.ones(tgt.size(0), tgt.size(0), dtype=torch.bool), diagonal=1)
        outs = self.transformer(  # <- here
            self.positional_encoding(self.src_tok_emb(src)),
            self.positional_encoding(self.tgt_tok_emb(tgt)),
            tgt_mask=tgt_mask,
        )
        return self.generator(outs)


def run_epoch(model, loader, loss_fn, optimizer=None):
    losses, right, count = 0.0, 0, 0
    for src, tgt in loader:
        tgt_input, tgt_out = tgt[:, :-1], tgt[:, 1:]
        logits = model(src, tgt_input)
        loss = loss_fn(logits.reshape(-1, VOCAB), tgt_out.reshape(-1))
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        real = tgt_out != PAD
        losses += loss.item()
        right += (logits.argmax(-1) == tgt_out)[real].sum().item()
        count += real.sum().item()
    return losses / len(loader), right / count


if __name__ == "__main__":
    torch.manual_seed(0)
    train_loader = DataLoader(list(phrases(1600, 1)), batch_size=64, collate_fn=collate_fn, shuffle=True)
    val_loader = DataLoader(list(phrases(200, 2)), batch_size=64, collate_fn=collate_fn)
    transformer = Seq2SeqTransformer()
    for p in transformer.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    loss_fn = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)
    optimizer = torch.optim.Adam(transformer.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    for epoch in range(1, 7):
        transformer.train()
        train_loss, _ = run_epoch(transformer, train_loader, loss_fn, optimizer)
        transformer.eval()
        with torch.no_grad():
            val_loss, accuracy = run_epoch(transformer, val_loader, loss_fn)
        print(f"Epoch: {epoch}, Train loss: {train_loss:.3f}, Val loss: {val_loss:.3f}, tokens right {accuracy:.3f}")
