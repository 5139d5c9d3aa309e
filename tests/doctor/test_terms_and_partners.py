"""Divergences, paths, adversaries and partners of rows: each fault in ways of writing that share no names, beside what looks alike and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import found, looped

pytestmark = pytest.mark.slow

DRAWN = """
from torch.distributions import Normal, kl_divergence
enc, dec = nn.Linear(12, 6), nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 12))
optimizer = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-3)
"""
BATCH = "x = torch.rand(32, 12)\nm, s = enc(x).chunk(2, 1)\n"
NOISE = "z = m + torch.randn_like(m) * (0.5 * s).exp()\n"
FITS = "fit = F.binary_cross_entropy_with_logits(dec(z), x, reduction='sum') / 32\n"

SPREAD = NOISE + FITS + "spread = m.pow(2).mean(0) - m.mean(0).pow(2)\n"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        (NOISE + FITS + "kl = 0.5 * torch.sum(1 + s - m ** 2 - s.exp()) / 32  # cause\nloss = fit + kl", "wrong_sign"),
        (NOISE + FITS + "kl = -0.5 * (1 + s - m.pow(2) - torch.exp(s)).sum(1).mean()  # cause\nloss = fit - 0.1 * kl", "wrong_sign"),
        ("w = F.softplus(s)\nz = w.mul(torch.randn(32, 3)).add(m)\n" + FITS + "reg = (m.square() + w.square() - 2 * w.log() - 1).sum() / 64  # cause\nloss = fit - reg", "wrong_sign"),
        ("q = Normal(m, s.exp())\nz = q.rsample()\n" + FITS + "loss = fit - kl_divergence(q, Normal(torch.zeros(3), torch.ones(3))).sum(1).mean()  # cause", "wrong_sign"),
        (NOISE + FITS + "loss = fit - 0.5 * torch.sum(1 + s - m ** 2 - s.exp()) / 32", ""),
        ("q = Normal(m, s.exp())\nz = q.rsample()\n" + FITS + "loss = fit + kl_divergence(q, Normal(torch.zeros(3), torch.ones(3))).sum(1).mean()", ""),
        # what is far from others' means is no divergence: the size of the means is held by another term
        (NOISE + FITS + "loss = fit - 0.01 * torch.pdist(m).mean() + 0.5 * (m ** 2 + s.exp() - 1 - s).sum(1).mean()", ""),
        # nor is a square that something bounded is made of
        (NOISE + FITS + "loss = fit - 0.01 * torch.tanh(m ** 2).mean()", ""),
        ("z = (m / m.norm(dim=1, keepdim=True)) + 0.1 * torch.randn(32, 3)\n" + FITS + "loss = fit", ""),
        (NOISE + FITS + "kl = 0.5 * (m.square() + s.exp() - s - 1).flatten(1).sum(1)  # cause\nloss = fit - torch.stack([kl.mean(), 0 * kl.sum()]).sum()", "wrong_sign"),
        # nor is the spread of the means over the rows, which a loss without rivals holds up
        (SPREAD + "loss = fit + F.relu(1 - (spread + 1e-4).sqrt()).mean()", ""),
        (SPREAD + "loss = fit + torch.clamp(1 - spread, min=0).sum()", ""),
        (SPREAD + "loss = fit - 0.1 * spread.sum()", ""),
        (NOISE + FITS + "loss = fit + F.relu(1 - m.square().mean(0)).mean()", ""),
        (NOISE + FITS + "loss = fit + F.softplus(2 - (m ** 2).sum(1)).mean()", ""),
    ],
)  # fmt: skip
def test_a_divergence_from_the_prior_is_added(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, DRAWN + looped(BATCH + loss), pitfall)


WHOLE = "kl = -0.5 * torch.sum(1 + s - m ** 2 - s.exp())"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        (NOISE + "fit = F.mse_loss(dec(z), x)\n" + WHOLE + "  # cause\nloss = (fit + kl) / len(x)", "loss_terms"),
        (NOISE + WHOLE + "  # cause\nloss = (kl + F.binary_cross_entropy_with_logits(dec(z), x)).div(32)", "loss_terms"),
        (NOISE + "fit = (dec(z) - x).pow(2).mean()\n" + WHOLE + "  # cause\ntotal = fit + 2 * kl\nloss = total / x.size(0)", "loss_terms"),
        (NOISE + WHOLE + "  # cause\nloss = (F.l1_loss(dec(z), x) + kl) * 0.5 / 32", "loss_terms"),
        # the weight of the divergence grows from nothing, in later updates than the first
        (NOISE + "fit = F.mse_loss(dec(z), x)\n" + WHOLE + "  # cause\nloss = fit + min(1.0, update / 24) * kl", "loss_terms"),
        (NOISE + "fit = F.mse_loss(dec(z), x)\n" + WHOLE + "\nloss = fit + min(1.0, update / 24) * kl / len(x)", ""),
        (NOISE + "fit = F.mse_loss(dec(z), x, reduction='sum')\n" + WHOLE + "\nloss = (fit + kl) / len(x)", ""),
        (NOISE + "fit = F.mse_loss(dec(z), x)\n" + WHOLE + "\nloss = fit + kl / len(x)", ""),
    ],
)  # fmt: skip
def test_a_mean_beside_a_sum_is_seen_where_both_are_divided_by_the_rows(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    told(tmp_path, DRAWN + looped(BATCH + loss, 48 if "update" in loss else 12), pitfall)


TAUGHT = """
big, small = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5)), nn.Linear(6, 5)
optimizer = torch.optim.Adam(small.parameters(), lr=1e-3)
measure, pick = nn.KLDivLoss(reduction="mean", log_target=True), nn.NLLLoss()
"""
ROWS = (
    "x = torch.randn(40, 6); y = torch.randint(0, 5, (40,)); a = small(x)\nwith torch.no_grad(): b = big(x)\n"
)


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = 0.5 * F.kl_div(F.log_softmax(a / 2, 1), F.softmax(b / 2, 1)) * 4 + 0.5 * F.cross_entropy(a, y)  # cause", "loss_terms"),
        ("p = a.log_softmax(-1)\nd = measure(p, b.log_softmax(-1))  # cause\nloss = pick(p, y) + d", "loss_terms"),
        ("parts = [F.cross_entropy(a, y)]\nparts.append(F.kl_div(a.log_softmax(1), b.softmax(1), reduction='mean'))  # cause\nloss = torch.stack(parts).sum()", "loss_terms"),
        ("h = torch.nn.functional.kl_div(input=a.log_softmax(1), target=b.softmax(1))  # cause\nloss = F.cross_entropy(a, y) - -0.3 * h", "loss_terms"),
        ("loss = 0.5 * F.kl_div(F.log_softmax(a / 2, 1), F.softmax(b / 2, 1), reduction='batchmean') * 4 + 0.5 * F.cross_entropy(a, y)", ""),
        ("loss = F.kl_div(a.log_softmax(1), b.softmax(1), reduction='mean')", ""),
        ("loss = F.cross_entropy(a, y) + 5 * F.kl_div(a.log_softmax(1), b.softmax(1), reduction='mean')", ""),
        ("loss = F.cross_entropy(a, y) + F.kl_div(a.log_softmax(1), b.softmax(1), reduction='none').sum(1).mean()", ""),
    ],
)  # fmt: skip
def test_a_divergence_is_a_sum_over_the_classes(tmp_path: Path, loss: str, pitfall: str) -> None:
    if "(input=" in loss:  # the wrapper takes the arguments by the same names
        loss = loss.replace("input=", "").replace("target=", "")
    told(tmp_path, TAUGHT + looped(ROWS + loss), pitfall)


PATHS = """
class Heard(nn.Module):
    def __init__(self, stride):
        super().__init__()
        self.conv, self.out = nn.Conv1d(4, 16, 3, stride=stride, padding=1), nn.Linear(16, 6)
    def forward(self, x):
        return self.out(self.conv(x).relu().transpose(1, 2)).log_softmax(-1)
net = Heard({stride})
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
for update in range(8):
    scores = net(torch.randn(8, 4, 24))
    sizes = torch.full((8,), {letters})
    texts = torch.randint(1, 6, (8, {letters}))
    {alike}
    frames = torch.full((8,), scores.shape[1])
    {loss}
    optimizer.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("stride", "letters", "alike", "loss", "pitfall"),
    [
        (8, 5, "pass", "loss = F.ctc_loss(scores.transpose(0, 1), texts, frames, sizes)", "unreachable_targets"),
        (4, 5, "texts[:] = 2", "loss = nn.CTCLoss()(scores.transpose(0, 1), texts.flatten(), frames, sizes)", "unreachable_targets"),
        (4, 7, "pass", "loss = nn.CTCLoss(zero_infinity=True)(scores.transpose(0, 1), texts, tuple(frames.tolist()), tuple(sizes.tolist()))", "unreachable_targets"),
        (2, 9, "pass", "loss = nn.functional.ctc_loss(scores.permute(1, 0, 2), texts, frames // 2, sizes, 0)", "unreachable_targets"),
        (2, 5, "pass", "loss = F.ctc_loss(scores.transpose(0, 1), texts, frames, sizes)", ""),
        (4, 3, "texts[:] = 2", "loss = F.ctc_loss(scores.transpose(0, 1), texts.flatten(), frames, sizes)", ""),
    ],
)  # fmt: skip
def test_a_text_needs_a_frame_for_each_letter(
    tmp_path: Path, stride: int, letters: int, alike: str, loss: str, pitfall: str
) -> None:
    ill = found(tmp_path, PATHS.format(stride=stride, letters=letters, alike=alike, loss=loss))
    assert set(ill) - {"non_finite_loss", "no_gradient"} == ({pitfall} if pitfall else set())


RARELY = """
maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_maker, of_critic = (torch.optim.Adam(each.parameters(), 1e-3) for each in (maker, critic))
for turn in range(8):
    for _ in range(5):
        real, fake = torch.randn(32, 2) + 3, maker(torch.randn(32, 4)).detach()
        of_critic.zero_grad()
        {critic}
        of_critic.step()
    of_maker.zero_grad()
    {maker}
    of_maker.step()
"""


@pytest.mark.parametrize(
    ("critic", "maker", "pitfall"),
    [
        ("gap = critic(real).mean() - critic(fake).mean(); gap.backward()  # cause", "(-critic(maker(torch.randn(32, 4)))).mean().backward()", "wrong_sign"),
        ("gap = critic(fake).mean() - critic(real).mean(); gap.backward()", "worth = critic(maker(torch.randn(32, 4))).mean(); worth.backward()  # cause", "wrong_sign"),
        ("critic(real).mean().backward(); critic(fake).mean().neg().backward()  # cause", "critic(maker(torch.randn(32, 4))).mean().neg().backward()", "wrong_sign"),
        ("d = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean(); d.backward()", "critic(maker(torch.randn(32, 4))).sum().div(32).backward()  # cause", "wrong_sign"),
        ("gap = critic(fake).mean() - critic(real).mean(); gap.backward()", "critic(maker(torch.randn(32, 4))).mean().neg().backward()", ""),
        ("gap = critic(real).mean() - critic(fake).mean(); gap.backward()", "critic(maker(torch.randn(32, 4))).mean().backward()", ""),
    ],
)  # fmt: skip
def test_adversaries_of_which_one_steps_rarely_are_looked_at_until_it_has(
    tmp_path: Path, critic: str, maker: str, pitfall: str
) -> None:
    told(tmp_path, RARELY.format(critic=critic, maker=maker), pitfall)


PARTNERS = """
one, two = (nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 12)) for _ in range(2))
optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()], 1e-3)
bank = F.normalize(torch.randn(50, 12), dim=1)
"""
VIEWS = "x = torch.randn(32, 8)\na, b = one(x), two(x + 0.1 * torch.randn(32, 8))\n"
UNIT = "a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)\n"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        (UNIT + "s = torch.cat([(a * b).sum(1, keepdim=True), a @ bank.T], 1) / 0.2\nloss = F.cross_entropy(s, torch.ones(32, dtype=torch.long))  # cause", "mismatched_rows"),
        (UNIT + "s = torch.hstack((torch.einsum('nd,nd->n', a, b).unsqueeze(1), torch.mm(a, bank.t()))).div(0.1)\nloss = nn.CrossEntropyLoss()(s, torch.full((32,), 50))  # cause", "mismatched_rows"),
        (UNIT + "s = torch.cat([a @ bank.T, (a * b).sum(-1)[:, None]], dim=-1) * 5\nloss = F.cross_entropy(s, x.new_zeros(32).long())  # cause", "mismatched_rows"),
        (UNIT + "own, rest = (a * b).sum(1).view(-1, 1), a.matmul(bank.T)\nloss = F.cross_entropy(torch.concat([own, rest], 1) / 0.3, torch.tensor([7] * 32))  # cause", "mismatched_rows"),
        (UNIT + "s = torch.cat([(a * b).sum(1, keepdim=True), a @ bank.T], 1) / 0.2\nloss = F.cross_entropy(s, torch.zeros(32, dtype=torch.long))", ""),
        (UNIT + "s = torch.cat([a @ bank.T, (a * b).sum(-1)[:, None]], dim=-1) * 5\nloss = F.cross_entropy(s, torch.full((32,), 50))", ""),
        # a class for none of them beside others, each of which is some row's
        ("s = torch.cat([a[:, :1], b[:, :4]], 1)\nloss = F.cross_entropy(s, torch.arange(32) % 5)", ""),
    ],
)  # fmt: skip
def test_the_label_is_the_place_of_the_rows_own_partner(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, PARTNERS + looped(VIEWS + loss), pitfall)


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("a, b = F.normalize(a, dim=0), F.normalize(b, dim=0)  # cause\nloss = F.cross_entropy(a @ b.T / 0.1, torch.arange(32))", "wrong_axis"),
        ("a = a / a.norm(dim=0, keepdim=True); b = F.normalize(b, dim=-1)\nloss = F.cross_entropy(torch.mm(a, b.t()).mul(10), torch.arange(32))  # cause", "wrong_axis"),
        ("u = nn.functional.normalize(b, p=2.0, dim=-2)  # cause\nown = (F.normalize(a, dim=1) * u).sum(1, keepdim=True)\nloss = F.cross_entropy(torch.cat([own, a @ bank.T], 1), torch.zeros(32).long())", "wrong_axis"),
        ("u = a.div(a.pow(2).sum(0).sqrt())\nloss = nn.CrossEntropyLoss()(u.matmul(F.normalize(b, dim=1).transpose(0, 1)) / 0.2, torch.arange(32))  # cause", "wrong_axis"),
        (UNIT + "loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(32))", ""),
        # the correlation of columns, which are scaled over the rows on purpose
        ("a, b = F.normalize(a, dim=0), F.normalize(b, dim=0)\nc = a.T @ b\nloss = (c.diagonal() - 1).pow(2).sum() + 0.01 * (c - torch.diag(c.diagonal())).pow(2).sum()", ""),
        # the columns of weights, one for each class, are scaled
        ("loss = F.cross_entropy(F.normalize(a, dim=1) @ F.normalize(two[2].weight, dim=0) * 8 + b[:, :1], torch.arange(32))", ""),
    ],
)  # fmt: skip
def test_it_is_the_rows_whose_length_is_made_one(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, PARTNERS + looped(VIEWS + loss), pitfall)
