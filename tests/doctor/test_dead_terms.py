"""Terms that teach nothing or the opposite, and outputs that are read in two ways: each in ways of writing that share no names, beside what looks alike and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

TAUGHT = """
big, small = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5)), nn.Linear(6, 5)
optimizer = torch.optim.Adam(small.parameters(), lr=1e-3)
kd_loss = nn.KLDivLoss(reduction="batchmean", log_target=True)
"""
ROWS = (
    "x = torch.randn(40, 6); y = torch.randint(0, 5, (40,)); a = small(x)\nwith torch.no_grad(): b = big(x)\n"
)


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("p = F.log_softmax(b / 4, 1)  # cause\nq = F.log_softmax(b / 4, 1)\nloss = 0.9 * kd_loss(p, q) * 16 + 0.1 * F.cross_entropy(a, y)", "constant_term"),
        ("p, q = b.softmax(1), big(x).detach().softmax(1)  # cause\nkl = (p * (p.log() - q.log())).sum(1).mean()\nloss = F.cross_entropy(a, y) + kl", "constant_term"),
        ("d = torch.distributions\nkl = d.kl_divergence(d.Categorical(logits=b), d.Categorical(logits=b)).mean()  # cause\nloss = F.cross_entropy(a, y)\nloss += 2 * kl", "constant_term"),
        ("hint = F.mse_loss(b.tanh(), b.tanh())  # cause\nloss = hint * 0.5 + F.cross_entropy(a, y)", "constant_term"),
        ("kd = F.kl_div(F.log_softmax(a / 2, 1), F.softmax(a / 2, 1), reduction='batchmean')  # cause\nloss = F.cross_entropy(a, y) + 4 * kd", "constant_term"),
        ("loss = 0.9 * kd_loss(F.log_softmax(a / 4, 1), F.log_softmax(b / 4, 1)) * 16 + 0.1 * F.cross_entropy(a, y)", ""),
        # read, and no term of the loss
        ("same = F.mse_loss(b, big(x).detach()).item()\nloss = F.cross_entropy(a, y)", ""),
        # a sum that begins with nothing, while something is compared with itself for the screen
        ("gap = (b - b.clone()).abs().max()\nloss = torch.zeros(()) + F.cross_entropy(a, y) if update % 4 == 0 else F.cross_entropy(a, y)", ""),
        # a copy of the model is as the model, until that has learned
        ("if update == 0: old = copy.deepcopy(small)\nwith torch.no_grad(): ref = old(x)\nkl = F.kl_div(a.log_softmax(1), ref.softmax(1), reduction='batchmean')\nloss = F.cross_entropy(a, y) + kl", ""),
        ("if update == 0: old = copy.deepcopy(small).requires_grad_(False)\ndrift = (old(x) - a.detach()).square().mean()\nloss = F.cross_entropy(a, y) + drift * 0", ""),
        # two passes under dropout
        ("c = small(F.dropout(x, 0.2))\nkl = F.kl_div(a.log_softmax(1), c.softmax(1), reduction='batchmean')\nloss = F.cross_entropy(a, y) + kl", ""),
        ("step = (a.log_softmax(1) - a.log_softmax(1).detach()).exp()[:, 0].mean()\nloss = F.cross_entropy(a, y) + 0.1 * step", ""),
    ],
)  # fmt: skip
def test_something_is_compared_with_itself(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, TAUGHT + looped(ROWS + loss), pitfall)


POLICY = """
from torch.distributions import Categorical, Normal, kl_divergence
net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5))
base = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
ACTS = """
x, adv = torch.randn(40, 6), torch.randn(40)
with torch.no_grad():
    acts = Categorical(logits=net(x)).sample()
    was = net(x).log_softmax(1).gather(1, acts[:, None])[:, 0]
    ref = base(x).log_softmax(1).gather(1, acts[:, None])[:, 0]
now = net(x).log_softmax(1).gather(1, acts[:, None])[:, 0]
"""
CLIPPED = "r = (now - was).exp()\nlossy = torch.max(-adv * r, -adv * r.clamp(0.8, 1.2))\n"
LOW = "d = (ref - now).clamp(-9, 9)\nheld = (d.exp() - d - 1).clamp(max=10)\n"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        (CLIPPED + LOW + "loss = lossy.mean() - 0.2 * held.mean()  # cause", "wrong_sign"),
        ("k = torch.exp(ref - now) - (ref - now) - 1\ntoken = -(torch.exp(now - now.detach()) * adv + 0.1 * k)\nm = torch.rand(40) < 0.9\nloss = (token * m).sum() / m.sum()  # cause", "wrong_sign"),
        ("p = Categorical(logits=net(x))\ngain = adv * p.log_prob(acts)\nkl = kl_divergence(Categorical(logits=base(x)), p)\nloss = -(gain + 0.5 * kl).mean()  # cause", "wrong_sign"),
        (CLIPPED + "loss = lossy.mean() - 0.1 * F.kl_div(net(x).log_softmax(1), base(x).softmax(1), reduction='batchmean')  # cause", "wrong_sign"),
        (CLIPPED + "held = 0.5 * (now - ref).square()\nloss = (lossy - 0.1 * held).mean()  # cause", "wrong_sign"),
        (CLIPPED + LOW + "loss = lossy.mean() + 0.2 * held.mean()", ""),
        ("k = torch.exp(ref - now) - (ref - now) - 1\ntoken = -(torch.exp(now - now.detach()) * adv - 0.1 * k)\nloss = token.mean()", ""),
        ("p = Categorical(logits=net(x))\nloss = (0.5 * kl_divergence(p, Categorical(logits=base(x))) - adv * p.log_prob(acts)).mean() - 0.01 * p.entropy().mean()", ""),
        ("p = Normal(net(x), 1.0)\na = p.sample()\nloss = 0.1 * kl_divergence(p, Normal(base(x), 1.0)).mean() - (adv[:, None] * p.log_prob(a)).mean()", ""),
        # the divergence is taken off the reward
        ("gain = adv - 0.1 * (now.detach() - ref)\nr = (now - was).exp()\nloss = -(gain * r).mean()", ""),
        # what is to be unlearned is to be far from what it was
        ("y = torch.randint(0, 5, (40,))\nloss = F.cross_entropy(net(x), y) - 0.1 * F.kl_div(net(x + 3).log_softmax(1), base(x + 3).softmax(1), reduction='batchmean')", ""),
        # policies of which each is to be another one than its partner
        ("p, q = Categorical(logits=net(x)), Categorical(logits=net(-x))\nloss = -(adv * p.log_prob(acts)).mean() - 0.01 * kl_divergence(p, q).mean()", ""),
        # preferences between two answers
        ("pair = (now - ref)[:20] - (now - ref)[20:]\nloss = -F.logsigmoid(0.1 * pair).mean()", ""),
        (CLIPPED + "values = net(x).mean(1)\nloss = lossy.mean() + 0.5 * (values - adv).square().mean()", ""),
    ],
)  # fmt: skip
def test_a_policy_is_driven_away_from_what_holds_it(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, POLICY + looped(ACTS + loss), pitfall)


DRAWN = """
enc, dec = nn.Linear(12, 6), nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 12))
optimizer = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-3)
"""
BATCH = "x = torch.rand(32, 12)\nm, s = enc(x).chunk(2, 1)\n"
FITS = "fit = F.binary_cross_entropy_with_logits(dec(z), x, reduction='sum') / 32\n"
OF_LOG = "z = m + torch.randn_like(m) * (0.5 * s).exp()\n" + FITS


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("s = s.clamp(-9, 6)\n" + OF_LOG + "v = torch.square(s)\nkl = 0.5 * torch.sum(torch.square(m) + v - torch.log(v + 1e-20) - 1, -1)  # cause\nloss = fit + kl.mean()", "read_two_ways"),
        (OF_LOG + "kl = -0.5 * (1 + 2 * s.abs().log() - m ** 2 - s ** 2).sum() / 32  # cause\nloss = fit + kl", "read_two_ways"),
        ("z = torch.randn_like(s) * s + m\n" + FITS + "kl = -0.5 * (1 + s - m.pow(2) - s.exp()).sum(1).mean()  # cause\nloss = fit + kl", "read_two_ways"),
        ("w = F.softplus(s)\nz = m.add(w.mul(torch.randn(32, 3)))\n" + FITS + "reg = 0.5 * (m * m + w - w.log() - 1).sum(1).mean()\nloss = fit + 0.1 * reg  # cause", "read_two_ways"),
        ("w = F.softplus(s) + 1e-4\nz = m + torch.randn(32, 3) * w\n" + FITS + "reg = (m.square() + w.square() - 2 * w.log() - 1).sum() / 64\nloss = fit + reg", ""),
        ("w = F.softplus(s)\nz = m + torch.randn(32, 3) * w.sqrt()\n" + FITS + "loss = fit + 0.5 * (m.square() + w - w.log() - 1).sum(1).mean()", ""),
        (OF_LOG + "loss = fit + 0.5 * (m ** 2 + s.exp() - s - 1).sum(1).mean()", ""),
        ("w = (0.5 * s).exp()\nz = m + torch.randn(32, 3) * w\n" + FITS + "loss = fit + 0.5 * (m ** 2 + w ** 2 - (w ** 2).log() - 1).sum(1).mean()", ""),
        # the size of the logarithms is held besides
        (OF_LOG + "loss = fit + 0.5 * (m ** 2 + s.exp() - s - 1).sum(1).mean() + 0.01 * s.square().mean()", ""),
        ("q = torch.distributions.Normal(m, F.softplus(s) + 1e-3)\nz = q.rsample()\n" + FITS + "loss = fit + torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros(3), torch.ones(3))).sum(1).mean()", ""),
        # counts, of which the rate is the exponential of the same output
        ("z = m\n" + FITS + "c = torch.randn(32, 3)\nloss = fit + (s.exp() - c * s).mean() + m.square().mean()", ""),
    ],
)  # fmt: skip
def test_a_spread_is_read_as_another_one(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, DRAWN + looped(BATCH + loss), pitfall)


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("soft = F.kl_div(F.log_softmax(a / 5, 1), F.softmax(b / 5, 1), reduction='batchmean')  # cause\nloss = 0.3 * F.cross_entropy(a, y) + 0.7 * soft", "loss_terms"),
        ("loss = 0.9 * F.cross_entropy(a / 4, (b / 4).softmax(1)) + (1 - 0.9) * F.cross_entropy(a, y)  # cause", "loss_terms"),
        ("d = nn.KLDivLoss(reduction='sum', log_target=True)((a * 0.25).log_softmax(-1), (b * 0.25).log_softmax(-1)) / len(x)  # cause\nloss = d * 0.5 + F.cross_entropy(a, y) / 2", "loss_terms"),
        ("soft = F.kl_div(F.log_softmax(a / 5, 1), F.softmax(b / 5, 1), reduction='batchmean')\nloss = 0.3 * F.cross_entropy(a, y) + 0.7 * soft * 25", ""),
        ("soft = F.kl_div(F.log_softmax(a / 5, 1), F.softmax(b / 5, 1), reduction='batchmean') * (0.7 * 5 * 5)\nloss = F.cross_entropy(a, y) * 0.3 + soft", ""),
        # a weight that was found for it
        ("soft = F.kl_div(F.log_softmax(a / 5, 1), F.softmax(b / 5, 1), reduction='batchmean')\nloss = F.cross_entropy(a, y) + 12 * soft", ""),
        ("loss = F.kl_div(F.log_softmax(a / 5, 1), F.softmax(b / 5, 1), reduction='batchmean')", ""),
        ("loss = 0.5 * F.kl_div(F.log_softmax(a / 1.5, 1), F.softmax(b / 1.5, 1), reduction='batchmean') + 0.5 * F.cross_entropy(a, y)", ""),
        # labels that are mixed, and smoothed scores of two heads
        ("m = F.one_hot(y, 5).float() * 0.6 + F.one_hot(y.flip(0), 5) * 0.4\nloss = 0.5 * F.cross_entropy(a / 5, m) + 0.5 * F.mse_loss(a, m)", ""),
    ],
)  # fmt: skip
def test_softened_scores_are_weighed_by_the_square_of_their_temperature(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    told(tmp_path, TAUGHT + looped(ROWS + loss), pitfall)
