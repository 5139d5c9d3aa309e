"""Decoders that are stepped: what they read beside what they are to write, in the training and in the evaluation, each fault in several ways of writing, beside what is right."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

READS = """
import random
random.seed(0)
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(30, 12), nn.GRUCell(12, 12), nn.Linear(12, 30)
    def forward(self, token, h):
        h = self.cell(self.emb(token), h)
        return self.out(h), h
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(30, 12), nn.GRU(12, 12, batch_first=True), nn.Linear(12, 30)
    def forward(self, token, h):
        s, h = self.rnn(self.emb(token), h)
        return self.out(s), h
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.step, self.kind = nn.Embedding(30, 12), Reader(), nn.Embedding(2, 12)
    def forward(self, x, y, ratio=0.5):
        h, token, scores = self.source(x).mean(1), torch.ones(len(x), dtype=torch.long), []
        for t in range(y.shape[1]):
{body}
        return torch.stack(scores, 1)
net, cell, rnn, last = Net(), Reader(), Decoder(), nn.GRUCell(12, 12)
optimizer = torch.optim.Adam([*net.parameters(), *cell.parameters(), *rnn.parameters(), *last.parameters()], lr=1e-3)
def texts():
    return torch.randint(2, 30, (16, 7)), torch.randint(2, 30, (16, 6))
"""
NEXT = """
logits, h = self.step(token, h)
scores.append(logits)
token = y[:, t] if random.random() < ratio else logits.argmax(-1)
"""
CODED = "_, y = texts()\nh, parts = torch.zeros(16, 12), []\nfor token in y.t():\n    _, h = cell(token, h)\nfor _ in range(6):\n    h = last(torch.zeros(16, 12), h)\n    parts.append(cell.out(h))\n"
WHOLE = "x, y = texts()\nloss = F.cross_entropy(net(x, y).flatten(0, 1), y.flatten())"


@pytest.mark.parametrize(
    ("body", "loss", "pitfall"),
    [
        ("token = y[:, t]\nlogits, h = self.step(token, h)  # cause\nscores.append(logits)", WHOLE, "shifted_labels"),
        ("if random.random() < ratio:\n    token = y[:, t]\nlogits, h = self.step(token, h)  # cause\nscores.append(logits)\ntoken = logits.argmax(-1)", WHOLE, "shifted_labels"),
        (NEXT, "_, y = texts()\nh, loss = torch.zeros(16, 12), 0\nfor t in range(6):\n    s, h = cell(y[:, t], h)  # cause\n    loss = loss + F.cross_entropy(s, y[:, t]) / 6", "shifted_labels"),
        (NEXT, "_, y = texts()\nh, parts = None, []\nfor token in y.split(1, 1):\n    s, h = rnn(token, h)  # cause\n    parts.append(s.log_softmax(-1))\nloss = F.nll_loss(torch.cat(parts, 1).transpose(1, 2), y)", "shifted_labels"),
        (NEXT, "_, y = texts()\nh, parts = torch.zeros(16, 12), []\nfor token in y.t():\n    s, h = cell(token, h)  # cause\n    parts.append(s)\nloss = F.cross_entropy(torch.stack(parts).view(-1, 30), y.t().reshape(-1), ignore_index=0)", "shifted_labels"),
        (NEXT, "_, y = texts()\nh, parts = torch.zeros(16, 12), []\nfor token in y.t():\n    s, h = cell(token, h)  # cause\n    parts.append(s)\nloss = sum(F.cross_entropy(s, token) for s, token in zip(parts, y.t()))", "shifted_labels"),
        # a kind of each token is read beside it
        ("h, token = h + self.kind((y[:, t] > 15).long()), y[:, t]\nlogits, h = self.step(token, h)  # cause\nscores.append(logits)", WHOLE, "shifted_labels"),
        (NEXT, WHOLE, ""),
        (NEXT, WHOLE.replace("net(x, y)", "net(x, y, 1.0)"), ""),
        # the first token is given, and is no label
        (NEXT, "_, y = texts()\nh, parts = torch.zeros(16, 12), []\nfor token in y.t()[:-1]:\n    s, h = cell(token, h)\n    parts.append(s)\nloss = F.cross_entropy(torch.stack(parts, 1).flatten(0, 1), y[:, 1:].flatten())", ""),
        (NEXT, "_, y = texts()\nh, loss = torch.zeros(16, 12), 0\nfor t in range(5):\n    s, h = cell(y[:, t], h)\n    loss = loss + F.cross_entropy(s, y[:, t + 1]) / 5", ""),
        # each token comes twice, and so is the one before at every second place
        (NEXT, WHOLE.replace("texts()\n", "texts()\ny = y.repeat_interleave(2, 1)\n").replace("net(x, y)", "net(x, y, 1.0)"), ""),
        # as does an answer, beside rows that are in their prompts, of which nothing is scored
        (NEXT, "x, y = texts()\ny = y.repeat_interleave(2, 1)\ny[:8] = torch.randint(2, 30, (8, 12))\nlabels = y.clone()\nlabels[:8] = -100\nloss = F.cross_entropy(net(x, y, 1.0).flatten(0, 1), labels.flatten())", ""),
        # all texts begin with the token that is given first, and what follows is drawn from the scores
        (NEXT, "_, y = texts()\ny[:, 0], y[:, 1] = 1, y[:, 1] - 2\nh, token, parts = torch.zeros(16, 12), torch.ones(16, dtype=torch.long), []\nfor _ in range(6):\n    s, h = cell(token, h)\n    parts.append(s)\n    token = s.softmax(1).multinomial(1)[:, 0]\nloss = F.cross_entropy(torch.stack(parts, 1).flatten(0, 1), y.flatten())", ""),
        # a move is the cell that it leads to, of which there are more
        (NEXT, "_, y = texts()\ncells, h, loss = torch.randn(40, 12), torch.zeros(16, 12), 0\nfor t in range(6):\n    _, h = cell(y[:, t], h)\n    loss = loss + F.cross_entropy(h @ cells.t(), y[:, t]) / 6", ""),
        # two properties that are asked for in turn are no text
        (NEXT, "_, y = texts()\nh, loss = torch.zeros(16, 12), 0\nfor asked in y[:, :2].t():\n    s, h = cell(asked, h)\n    loss = loss + F.cross_entropy(s, asked) / 2", ""),
        # one token alone is no text
        (NEXT, "_, y = texts()\ns, h = cell(y[:, 0], torch.zeros(16, 12))\nloss = F.cross_entropy(s, y[:, 0])", ""),
        # a class that an encoder and a decoder of vectors are told, beside a classifier of it
        (NEXT, "y = torch.randint(2, 30, (16,))\nh = torch.tanh(cell(y, torch.zeros(16, 12))[1])\ns, h = cell(y, h + torch.randn(16, 12))\nloss = F.cross_entropy(cell.out(torch.randn(16, 12)), y) + (h - 1).square().mean()", ""),
        (NEXT, "y = torch.randint(2, 30, (16,))\nh = torch.zeros(16, 12)\nfor _ in range(4):\n    s, h = cell(y, h)\nloss = F.cross_entropy(s, y)", ""),
        (NEXT, "y = torch.randint(2, 30, (16,))\nh, loss = torch.zeros(16, 12), 0\nfor _ in range(4):\n    s, h = cell(y, h)\n    loss = loss + F.cross_entropy(s, y) / 4", ""),
        # a text is read to its end, and written from the last state alone
        (NEXT, CODED + "loss = F.cross_entropy(torch.stack(parts, 1).flatten(0, 1), y.flatten())", ""),
        (NEXT, CODED + "loss = F.cross_entropy(torch.stack(parts, 2), y)", ""),
        (NEXT, CODED + "loss = sum(F.cross_entropy(s, token) for s, token in zip(parts, y.t())) / 6", ""),
        (NEXT, CODED + "loss = sum(F.cross_entropy(s, token) for s, token in zip(parts, y.t().flip(0))) / 6", ""),
        # what was read is written again: of the two texts the second begins with a token of its own
        (NEXT, "_, y = texts()\nh, parts = torch.zeros(16, 12), []\nfor token in [*y.t(), torch.ones(16, dtype=torch.long), *y.t()[:-1]]:\n    s, h = cell(token, h)\n    parts.append(s)\nloss = F.cross_entropy(torch.stack(parts[6:], 1).flatten(0, 1), y.flatten())", ""),
    ],
)  # fmt: skip
def test_a_decoder_reads_the_token_before_the_one_that_it_is_to_write(
    tmp_path: Path, body: str, loss: str, pitfall: str
) -> None:
    told(tmp_path, READS.format(body=indent(body.strip(), " " * 12)) + looped(loss), pitfall)


SCORED = """
for epoch in range(3):
    for _ in range(6):
        x, y = texts()
        loss = F.cross_entropy(net(x, y).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        for _ in range(4):
            x, y = texts()
{score}
    net.train()
"""
BY_HAND = "h, token, parts = torch.zeros(16, 12), torch.ones(16, dtype=torch.long), []\nfor t in range(6):\n    s, h = cell(token, h)  # cause\n    parts.append(s.argmax(-1))\n    token = {token}\nprint((torch.stack(parts, 1) == y).sum())"


@pytest.mark.parametrize(
    ("score", "pitfall"),
    [
        ("print((net(x, y).argmax(-1) == y).float().mean())  # cause", "random_validation"),
        ("hits = net(x, y, ratio=0.3).max(-1)[1].eq(y)  # cause\nprint(hits.sum() / hits.numel())", "random_validation"),
        ("wrong = torch.ne(net(x, y).argmax(2).flatten(), y.flatten()).sum() if epoch < 0 else (net(x, y).argmax(2).flatten() != y.flatten()).sum()  # cause\nprint(wrong)", "random_validation"),
        (BY_HAND.format(token="y[:, t] if random.random() < 0.5 else parts[-1]"), "random_validation"),
        ("print((net(x, y).argmax(-1).float() == y.float()).float().mean())  # cause", "random_validation"),
        ("print((net(x, y, 0.0).argmax(-1) == y).float().mean())", ""),
        ("print((net(x, y, 1.0).argmax(-1) == y).float().mean())", ""),
        (BY_HAND.format(token="parts[-1]"), ""),
        # a pass of the training, which may draw truths
        ("net.train()\nwith torch.enable_grad():\n    scores = net(x, y)\nprint((scores.argmax(-1) == y).float().mean())", ""),
        # all that is written is the truth, and so is what is read
        (BY_HAND.format(token="parts[-1]").replace("s.argmax", "(s + 99 * F.one_hot(y[:, t], 30)).argmax"), ""),
        # the beginning of the text is given, and the rest is written
        (BY_HAND.format(token="y[:, t] if t < 3 else parts[-1]"), ""),
    ],
)  # fmt: skip
def test_an_evaluation_gives_a_decoder_all_truths_or_none_behind_its_own(
    tmp_path: Path, score: str, pitfall: str
) -> None:
    body = READS.format(body=indent(NEXT.strip(), " " * 12))
    told(tmp_path, body + SCORED.format(score=indent(score, " " * 12)), pitfall)
