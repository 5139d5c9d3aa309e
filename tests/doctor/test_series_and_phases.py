"""Values of a series that a model may read, and parts that are unfrozen in a later phase: each fault in ways of writing that share no names, beside what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

SERIES = """
class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.enter, self.norm = nn.Linear(12, 1), nn.Linear(1, 12), nn.BatchNorm1d(12)
        self.conv, self.wide = nn.Conv1d(12, 12, 3, padding=1), nn.Conv1d(12, 12, 3, padding=2)
        self.lstm = nn.LSTM(12, 12, batch_first=True)
        self.heart = nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True)
    def forward(self, v):
        h = self.enter(v.unsqueeze(-1))
        {mixed}
        return self.head(h).squeeze(-1)
class Both(nn.Module):
    def __init__(self, ways):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 8, batch_first=True, bidirectional=ways > 1), nn.Linear(8 * ways, 1)  # cause: ways
    def forward(self, v):
        return self.out(self.rnn(v)[0])
curve = torch.randn(400).cumsum(0) / 10
starts = torch.arange(0, 360)
net = {net}
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
CONV = "h = h + self.norm(self.conv(h.transpose(1, 2)).relu()).transpose(1, 2)  # cause"
CUT = "h = h + self.norm(self.wide(h.transpose(1, 2))[..., :v.shape[1]].relu()).transpose(1, 2)"
MASKED = (
    "h = self.heart(h, src_mask=nn.Transformer.generate_square_subsequent_mask(v.shape[1]), is_causal=True)"
)
LSTM = "h, _ = self.lstm(h)"
NEXT = "s = starts[torch.randperm(360)[:24]]; rows = curve[s[:, None] + torch.arange(21)]; a, b = rows[:, :-1], rows[:, 1:]\n"


@pytest.mark.parametrize(
    ("net", "loss", "pitfall"),
    [
        (CONV, "loss = F.mse_loss(net(a), b)", "sees_the_future"),
        ("h = self.heart(h)  # cause", "loss = (net(a) - b).square().mean()", "sees_the_future"),
        ("h = h + h.mean(1, keepdim=True)", "loss = nn.SmoothL1Loss()(net(a), b)  # cause", "sees_the_future"),
        ("Both(ways=2)", "loss = F.l1_loss(net(a[..., None]), b[..., None])", "sees_the_future"),
        (CUT, "loss = F.mse_loss(net(a), b)", ""),
        (MASKED, "loss = (net(a) - b).square().mean()", ""),
        ("Both(1)", "loss = F.l1_loss(net(a[..., None]), b[..., None])", ""),
        (CUT, "loss = F.mse_loss(net(a), a.clone())  # cause", "shifted_labels"),
        (LSTM, "loss = (net(a) - a).abs().mean()  # cause", "shifted_labels"),
        (MASKED, "want = rows.narrow(1, 0, 20)\nloss = F.huber_loss(net(a), want)  # cause", "shifted_labels"),
        ("Both(1)", "loss = F.mse_loss(net(a.unsqueeze(2)), a.unsqueeze(2))  # cause", "shifted_labels"),
        # what is read from both sides, or by way of fewer numbers, is to be given again: no next value is meant
        ("Both(2)", "loss = F.mse_loss(net(a.unsqueeze(2)), a.unsqueeze(2))", ""),
        ("nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv1d(8, 1, 1))", "loss = F.mse_loss(net(a[:, None]), a[:, None])", ""),
        ("nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 20))", "loss = F.mse_loss(net(a), a)", ""),
        (LSTM, "loss = F.mse_loss(net(a + 0.1 * torch.randn_like(a)), a)", ""),
    ],
)  # fmt: skip
def test_what_a_series_is_to_give_is_not_among_what_is_read(
    tmp_path: Path, net: str, loss: str, pitfall: str
) -> None:
    own = net.startswith(("Both", "nn."))
    text = SERIES.replace("{net}", net if own else "Mixer()").replace("{mixed}", "pass" if own else net)
    text = text if net == "Both(ways=2)" else text.replace("  # cause: ways", "")
    told(tmp_path, text + looped(NEXT + loss), pitfall)


PHASES = """
body, top = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 3)
whole = nn.Sequential(body, top)
x = torch.randn(240, 8)
y = x[:, :3].argmax(1)
def learn(optimizer, epochs, net=whole):
    for epoch in range(epochs):
        net.train()
        for rows in torch.randperm(240).split(24):
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        net.eval()
        with torch.no_grad():
            print((net(x).argmax(1) == y).float().mean())
def switch(part, on):
    for weight in part.parameters():
        weight.requires_grad = on
{before}
{after}
"""
FIRST = "learn(torch.optim.Adam(whole.parameters(), 1e-3), 3)\n"


@pytest.mark.parametrize(
    ("before", "after", "pitfall"),
    [
        (FIRST + "switch(body, False)\no = torch.optim.Adam(top.parameters(), 1e-2)  # cause\nlearn(o, 3)", "switch(body[2], True)\nlearn(o, 6)", "not_in_optimizer"),
        ("first = torch.optim.SGD(whole.parameters(), 0.05)\nlearn(first, 3)\nbody.requires_grad_(False)\nsecond = torch.optim.SGD([w for w in whole.parameters() if w.requires_grad], 0.05)  # cause", "learn(second, 2)\nbody.requires_grad_(True)\nlearn(second, 6)", "not_in_optimizer"),
        (FIRST + "head = nn.Linear(16, 3)\nfresh = nn.Sequential(body, head)\nswitch(body, False)\nopt = torch.optim.AdamW(filter(lambda w: w.requires_grad, fresh.parameters()), 1e-2)  # cause", "learn(opt, 3, fresh)\nfor name, weight in fresh.named_parameters():\n    weight.requires_grad_(True)\nlearn(opt, 6, fresh)", "not_in_optimizer"),
        (FIRST + "for p in body.parameters(): p.requires_grad_(False)\nopt = torch.optim.RMSprop([{'params': top.weight}, {'params': [top.bias]}], lr=1e-3)  # cause", "learn(opt, 2)\nfor p in [*body[0].parameters(), *body[2].parameters()]: p.requires_grad_()\nlearn(opt, 6)", "not_in_optimizer"),
        (FIRST + "switch(body, False)\no = torch.optim.Adam(top.parameters(), 1e-2)\nlearn(o, 3)", "switch(body[2], True)\no.add_param_group({'params': list(body[2].parameters()), 'lr': 1e-3})\nlearn(o, 6)", ""),
        (FIRST + "switch(body, False)\nlearn(torch.optim.Adam(top.parameters(), 1e-2), 3)", "switch(body[2], True)\nlearn(torch.optim.Adam([w for w in whole.parameters() if w.requires_grad], 1e-3), 6)", ""),
        # probes of what was learned: the body is never frozen, and left as it is
        (FIRST, "probe = nn.Linear(16, 3)\nlearn(torch.optim.Adam(probe.parameters(), 1e-2), 6, nn.Sequential(body.requires_grad_(False), probe))", ""),
    ],
)  # fmt: skip
def test_what_is_unfrozen_later_has_an_optimizer_that_steps(
    tmp_path: Path, before: str, after: str, pitfall: str
) -> None:
    told(tmp_path, PHASES.format(before=before, after=after), pitfall)
