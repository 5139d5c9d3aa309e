"""Faults that checks know, in styles in which they were never tried: losses and clipping by hand, closures, loaders made for each pass; each beside a twin."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

IMPORTS = """
import os, random, tempfile
from collections import defaultdict
from dataclasses import dataclass
from torch import optim
from torch.utils.data import random_split
np.random.seed(0); random.seed(0)
"""
CASES = {
    "bs_inf": (
        """
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)); X = torch.randn(640, 8); Y = (X[:, 0] > 0).long(); V = torch.randn(200, 8); U = (V[:, 0] > 0).long(); opt = optim.Adam(net.parameters(), 1e-2)
        d = tempfile.mkdtemp()
        def validate():
            net.eval()
            with torch.no_grad(): l = F.cross_entropy(net(V), U).item()
            net.train(); return l
        for e in range(5):
            best = float("inf")  # cause
            for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True):
                loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
            v = validate()
            if v < best:  # cause
                best = v; torch.save(net.state_dict(), os.path.join(d, "best.pt"))
        """,
        "best_overwritten",
    ),
    "c_best_folds": (
        """
        net0 = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)); X = torch.randn(640, 8); Y = (X[:, 0] > 0).long(); V = torch.randn(200, 8); U = (V[:, 0] > 0).long()
        d = tempfile.mkdtemp()
        for fold in range(3):
            best = float("inf"); net = net0(); opt = optim.Adam(net.parameters(), 1e-2)
            for e in range(3):
                for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True):
                    loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
                net.eval()
                with torch.no_grad(): v = F.cross_entropy(net(V), U).item()
                net.train()
                if v < best: best = v; torch.save(net.state_dict(), os.path.join(d, f"best{fold}.pt"))
        """,
        "",
    ),
    "bs_ref_dict": (
        """
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)); X = torch.randn(640, 8); Y = (X[:, 0] > 0).long(); V, U = torch.randn(200, 8), torch.randint(0, 2, (200,)); opt = optim.Adam(net.parameters(), 1e-2)
        class Best:
            def __init__(self): self.score, self.state = -1., None
            def __call__(self, s, m):
                if s > self.score: self.score = s; self.state = dict(m.named_parameters())  # cause
        best = Best()
        for e in range(5):
            for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True):
                loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
            with torch.no_grad(): best((net(V).argmax(1) == U).float().mean().item(), net)
        net.load_state_dict(best.state)  # cause
        """,
        "best_not_copied",
    ),
    "pr_loaded_before_made": (
        """
        # optimizer state loaded into an optimizer that is then replaced
        D = tempfile.mkdtemp(); P = os.path.join(D, "last.pt")
        X = torch.randn(640, 8); Y = (X[:, 0] > 0).long()
        def session(n, resume):
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
            opt = optim.Adam(net.parameters(), 1e-3)
            if resume:
                st = torch.load(P); net.load_state_dict(st["model"]); opt.load_state_dict(st["optim"])  # cause
            opt = optim.Adam(net.parameters(), 1e-3)  # cause
            for e in range(n):
                for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True):
                    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            torch.save(dict(model=net.state_dict(), optim=opt.state_dict()), P)
        session(2, False); session(2, True)
        """,
        "partial_resume",
    ),
    "c_resume_two_opts": (
        """
        D = tempfile.mkdtemp(); P = os.path.join(D, "last.pt")
        X = torch.randn(640, 8); Y = (X[:, 0] > 0).long()
        def session(n, resume):
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
            opt = optim.Adam(net.parameters(), 1e-3)
            if resume:
                st = torch.load(P); net.load_state_dict(st["model"]); opt.load_state_dict(st["optim"])
            for e in range(n):
                for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True):
                    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            torch.save(dict(model=net.state_dict(), optim=opt.state_dict()), P)
        session(2, False); session(2, True)
        """,
        "",
    ),
    "rv_shared_ds": (
        """
        class Pics(Dataset):
            def __init__(self, n): self.x = torch.rand(n, 1, 12, 12); self.y = (self.x.mean((1, 2, 3)) > .5).long(); self.tf = None
            def __len__(self): return len(self.y)
            def __getitem__(self, i): return (self.tf(self.x[i]) if self.tf else self.x[i]), self.y[i]
        def jitter(x): return x.roll(random.randint(-3, 3), -1) + .1 * torch.randn_like(x)
        ds = Pics(400); a, b = random_split(ds, [300, 100])
        a.dataset.tf = jitter  # cause
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2)); opt = optim.Adam(net.parameters(), 1e-3)
        for e in range(4):
            net.train()
            for x, y in DataLoader(a, 50, shuffle=True): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad(): print(sum(F.cross_entropy(net(x), y, reduction="sum").item() for x, y in DataLoader(b, 50)) / 100)
        """,
        "random_validation",
    ),
    "c_aug_train_eval_loader_made_anew": (
        """
        class Pics(Dataset):
            def __init__(self, n, tf=None): self.x = torch.rand(n, 1, 12, 12); self.y = (self.x.mean((1, 2, 3)) > .5).long(); self.tf = tf
            def __len__(self): return len(self.y)
            def __getitem__(self, i): return (self.tf(self.x[i]) if self.tf else self.x[i]), self.y[i]
        def jitter(x): return x.roll(random.randint(-3, 3), -1) + .1 * torch.randn_like(x)
        a, b = Pics(300, jitter), Pics(100)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2)); opt = optim.Adam(net.parameters(), 1e-3)
        for e in range(4):
            net.train()
            for x, y in DataLoader(a, 50, shuffle=True): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad(): print(sum(F.cross_entropy(net(x), y, reduction="sum").item() for x, y in DataLoader(b, 50)) / 100)
        """,
        "",
    ),
    "os_own_minmax": (
        """
        def norm(a): return (a - a.min(0)) / (a.max(0) - a.min(0))  # cause
        x = np.random.gamma(2, 3, (500, 6)).astype("float32"); y = (x.sum(1) > 36).astype("int64")
        xtr, xte = norm(x[:400]), norm(x[400:])  # cause
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)); opt = optim.Adam(net.parameters(), 1e-2)
        A, B = torch.from_numpy(xtr), torch.from_numpy(y[:400])
        for e in range(4):
            for ix in torch.randperm(400).split(40):
                opt.zero_grad(); F.cross_entropy(net(A[ix]), B[ix]).backward(); opt.step()
        net.eval()
        with torch.no_grad(): print((net(torch.from_numpy(xte)).argmax(1).numpy() == y[400:]).mean())
        """,
        "other_statistics",
    ),
    "c_minmax_train": (
        """
        def fit(a): return a.min(0), a.max(0)
        x = np.random.gamma(2, 3, (500, 6)).astype("float32"); y = (x.sum(1) > 36).astype("int64")
        lo, hi = fit(x[:400]); x = (x - lo) / (hi - lo)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)); opt = optim.Adam(net.parameters(), 1e-2)
        A, B = torch.from_numpy(x[:400]), torch.from_numpy(y[:400])
        for e in range(4):
            for ix in torch.randperm(400).split(40):
                opt.zero_grad(); F.cross_entropy(net(A[ix]), B[ix]).backward(); opt.step()
        net.eval()
        with torch.no_grad(): print((net(torch.from_numpy(x[400:])).argmax(1).numpy() == y[400:]).mean())
        """,
        "",
    ),
    "os_test_raw": (
        """
        @dataclass
        class Split: x: np.ndarray; y: np.ndarray
        def data(n): x = np.random.normal(5, 3, (n, 6)); return Split(x, (x.sum(1) > 30).astype(int))
        tr, te = data(400), data(100)
        mu, sd = tr.x.mean(0), tr.x.std(0)
        tr.x = (tr.x - mu) / sd  # cause
        to = lambda a: torch.tensor(a, dtype=torch.float32)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)); opt = optim.Adam(net.parameters(), 1e-2)
        for e in range(4):
            for ix in torch.randperm(400).split(40):
                opt.zero_grad(); F.cross_entropy(net(to(tr.x)[ix]), torch.tensor(tr.y)[ix]).backward(); opt.step()
        net.eval()
        with torch.no_grad():
            print((net(to(te.x)).argmax(1).numpy() == te.y).mean())  # cause
        """,
        "other_statistics",
    ),
    "sp_nll_gather": (
        """
        from torch.nn.utils.rnn import pad_sequence
        PAD = 0
        texts = [[1] + [random.randint(3, 29) for _ in range(random.randint(3, 10))] + [2] for _ in range(300)]
        class LM(nn.Module):
            def __init__(self):
                super().__init__(); self.e = nn.Embedding(30, 24, padding_idx=PAD); self.g = nn.GRU(24, 32, batch_first=True); self.o = nn.Linear(32, 30)
            def forward(self, x): return self.o(self.g(self.e(x))[0])
        net = LM(); opt = optim.Adam(net.parameters(), 5e-3)
        for ep in range(3):
            random.shuffle(texts)
            for i in range(0, 300, 30):
                b = pad_sequence([torch.tensor(t) for t in texts[i:i+30]], batch_first=True, padding_value=PAD)
                inp, tgt = b[:, :-1], b[:, 1:]
                lp = net(inp).log_softmax(-1)
                loss = -lp.gather(-1, tgt[..., None]).mean()  # cause
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "scored_padding",
    ),
    "c_gather_masked": (
        """
        from torch.nn.utils.rnn import pad_sequence
        PAD = 0
        texts = [[1] + [random.randint(3, 29) for _ in range(random.randint(3, 10))] + [2] for _ in range(300)]
        class LM(nn.Module):
            def __init__(self):
                super().__init__(); self.e = nn.Embedding(30, 24, padding_idx=PAD); self.g = nn.GRU(24, 32, batch_first=True); self.o = nn.Linear(32, 30)
            def forward(self, x): return self.o(self.g(self.e(x))[0])
        net = LM(); opt = optim.Adam(net.parameters(), 5e-3)
        for ep in range(3):
            random.shuffle(texts)
            for i in range(0, 300, 30):
                b = pad_sequence([torch.tensor(t) for t in texts[i:i+30]], batch_first=True, padding_value=PAD)
                inp, tgt = b[:, :-1], b[:, 1:]
                lp = net(inp).log_softmax(-1)
                nll = -lp.gather(-1, tgt[..., None]).squeeze(-1)
                loss = (nll * (tgt != PAD)).sum() / (tgt != PAD).sum()
                loss2 = nll[tgt != PAD].mean()
                opt.zero_grad(); (loss + loss2).backward(); opt.step()
        """,
        "",
    ),
    "wa_chw_softmax": (
        """
        # segmentation with softmax over width in dice
        class Seg(nn.Module):
            def __init__(self):
                super().__init__()
                self.c = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
            def forward(self, x): return self.c(x)
        def dice(logits, y):
            p = logits.softmax(-1)  # cause
            t = F.one_hot(y, 3).permute(0, 3, 1, 2).float()
            inter = (p * t).sum((2, 3)); den = p.sum((2, 3)) + t.sum((2, 3))
            return 1 - (2 * inter / (den + 1e-6)).mean()
        X = torch.randn(64, 1, 16, 16); Y = (X[:, 0] > 0).long() + (X[:, 0] > 1).long()
        net = Seg(); opt = optim.Adam(net.parameters(), 1e-2)
        for ep in range(4):
            for x, y in DataLoader(TensorDataset(X, Y), 16, shuffle=True):
                loss = dice(net(x), y)
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "wrong_axis",
    ),
    "c_dice_axis": (
        """
        class Seg(nn.Module):
            def __init__(self):
                super().__init__()
                self.c = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
            def forward(self, x): return self.c(x)
        def dice(logits, y):
            p = logits.softmax(1)
            t = F.one_hot(y, 3).permute(0, 3, 1, 2).float()
            inter = (p * t).sum((2, 3)); den = p.sum((2, 3)) + t.sum((2, 3))
            return 1 - (2 * inter / (den + 1e-6)).mean()
        X = torch.randn(64, 1, 16, 16); Y = (X[:, 0] > 0).long() + (X[:, 0] > 1).long()
        net = Seg(); opt = optim.Adam(net.parameters(), 1e-2)
        for ep in range(4):
            for x, y in DataLoader(TensorDataset(X, Y), 16, shuffle=True):
                loss = dice(net(x), y)
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "",
    ),
    "ws_nll_hand": (
        """
        # loss written by hand with logsumexp, on softmaxed output
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(8, 24), nn.GELU())
                self.head = nn.Linear(24, 5)
            def forward(self, x):
                return torch.softmax(self.head(self.body(x)), -1)  # cause
        def xent(scores, y):
            lse = torch.logsumexp(scores, dim=1)  # cause
            return (lse - scores.gather(1, y[:, None]).squeeze(1)).mean()  # cause
        X = torch.randn(320, 8); Y = X[:, :5].argmax(1)
        net = Net(); opt = optim.SGD(net.parameters(), lr=.1, momentum=.9)
        def gen():
            for i in range(0, 320, 32): yield X[i:i+32], Y[i:i+32]
        for ep in range(3):
            for x, y in gen():
                opt.zero_grad(set_to_none=True)
                xent(net(x), y).backward()
                opt.step()
        """,
        "softmax_twice",
    ),
    "sg_sched_every": (
        """
        net = nn.Linear(6, 3); X = torch.randn(640, 6); Y = X[:, :3].argmax(1); opt = optim.SGD(net.parameters(), .1)
        sch = optim.lr_scheduler.StepLR(opt, step_size=10, gamma=.1)  # cause
        class Loop:
            def batch(self, x, y): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step(); sch.step()  # cause
            def epoch(self):
                for b in DataLoader(TensorDataset(X, Y), 32, shuffle=True): self.batch(*b)
        l = Loop()
        for _ in range(30 // 5): l.epoch()
        """,
        "schedule_length",
    ),
    "c_steplr_small": (
        """
        net = nn.Linear(6, 3); X = torch.randn(640, 6); Y = X[:, :3].argmax(1); opt = optim.SGD(net.parameters(), .1)
        sch = optim.lr_scheduler.MultiStepLR(opt, [3, 4], gamma=.1)
        for e in range(6):
            for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            sch.step()
        """,
        "",
    ),
    "d1_denoise_eps": (
        """
        net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 2)); opt = optim.Adam(net.parameters(), 1e-3); X = torch.randn(512, 2); ab = torch.linspace(.99, .01, 50)
        def q(x, t): a = ab[t][:, None]; return a.sqrt() * x + (1 - a).sqrt() * torch.randn_like(x)  # cause
        for i in range(60):
            x = X[torch.randint(512, (64,))]; t = torch.randint(50, (64,)); eps = torch.randn_like(x)  # cause
            loss = F.mse_loss(net(torch.cat([q(x, t), t[:, None] / 50], 1)), eps); opt.zero_grad(); loss.backward(); opt.step()  # cause
        """,
        "mismatched_rows",
    ),
    "c_denoise": (
        """
        net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 2)); opt = optim.Adam(net.parameters(), 1e-3); X = torch.randn(512, 2); ab = torch.linspace(.99, .01, 50)
        def q(x, t, e): a = ab[t][:, None]; return a.sqrt() * x + (1 - a).sqrt() * e
        for i in range(60):
            x = X[torch.randint(512, (64,))]; t = torch.randint(50, (64,)); eps = torch.randn_like(x); x = x + .01 * torch.randn_like(x)
            loss = F.mse_loss(net(torch.cat([q(x, t, eps), t[:, None] / 50], 1)), eps); opt.zero_grad(); loss.backward(); opt.step()
        """,
        "",
    ),
    "kd_teacher_trains": (
        """
        T, S = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), nn.Linear(6, 3)
        opt = optim.Adam(list(S.parameters()) + list(T.parameters()), 1e-3); X = torch.randn(400, 6); Y = X[:, :3].argmax(1)  # cause
        for e in range(3):
            for x, y in DataLoader(TensorDataset(X, Y), 40, shuffle=True):
                t = T(x)  # cause
                loss = .5 * F.kl_div((S(x) / 2).log_softmax(1), (t / 2).softmax(1), reduction="batchmean") + .5 * F.cross_entropy(S(x), y)  # cause
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "target_gradients",
    ),
    "c_kd_joint": (
        """
        T, S = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), nn.Linear(6, 3)
        opt = optim.Adam(list(S.parameters()) + list(T.parameters()), 1e-3); X = torch.randn(400, 6); Y = X[:, :3].argmax(1)
        for e in range(3):
            for x, y in DataLoader(TensorDataset(X, Y), 40, shuffle=True):
                t = T(x)
                loss = F.kl_div((S(x) / 2).log_softmax(1), (t / 2).softmax(1), reduction="batchmean") + F.cross_entropy(S(x), y) + F.cross_entropy(t, y)
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "",
    ),
    "c_vq_codebook": (
        """
        enc, dec, cb = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), nn.Linear(4, 8), nn.Embedding(16, 4)
        opt = optim.Adam([*enc.parameters(), *dec.parameters(), *cb.parameters()], 1e-3); X = torch.randn(320, 8)
        for e in range(3):
            for (x,) in DataLoader(TensorDataset(X), 32, shuffle=True):
                z = enc(x); q = cb(torch.cdist(z, cb.weight).argmin(1))
                loss = F.mse_loss(dec(z + (q - z).detach()), x) + F.mse_loss(z, q.detach()) + F.mse_loss(q, z.detach()) + .1 * F.mse_loss(z, q)
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "",
    ),
    "bm_means": (
        """
        net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)); opt = optim.Adam(net.parameters(), 1e-2); X = torch.randn(565, 6); Y = (X[:, 0] > 0).long()
        def evaluate(dl):
            accs = [(net(x).argmax(1) == y).float().mean().item() for x, y in dl]  # cause
            return sum(accs) / len(accs)  # cause
        for e in range(3):
            for x, y in DataLoader(TensorDataset(X[:400], Y[:400]), 25, shuffle=True): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            with torch.no_grad(): print(evaluate(DataLoader(TensorDataset(X[400:], Y[400:]), 80)))
        """,
        "batch_mean_scores",
    ),
    "c_means_weighted": (
        """
        net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)); opt = optim.Adam(net.parameters(), 1e-2); X = torch.randn(565, 6); Y = (X[:, 0] > 0).long()
        def evaluate(dl):
            accs = [(net(x).argmax(1) == y).float().mean().item() * len(x) for x, y in dl]
            return sum(accs) / len(dl.dataset)
        for e in range(3):
            for x, y in DataLoader(TensorDataset(X[:400], Y[:400]), 25, shuffle=True): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
            with torch.no_grad(): print(evaluate(DataLoader(TensorDataset(X[400:], Y[400:]), 80)))
        """,
        "",
    ),
    "mr_two_samplers": (
        """
        X = torch.randn(256, 6); Y = (X[:, 0] > 0).long()
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)); opt = optim.Adam(net.parameters(), 1e-2)
        def sample(t, n):
            return t[torch.randint(len(t), (n,))]  # cause
        for step in range(40):
            xb, yb = sample(X, 32), sample(Y, 32)  # cause
            loss = F.cross_entropy(net(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
        """,
        "mismatched_rows",
    ),
    "c_x": (
        """
        # unpaired draws on purpose: GAN real and noise
        X, Y = torch.randn(256, 2), torch.randn(256, 2)
        G, D = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)); og, od = optim.Adam(G.parameters(), 1e-3), optim.Adam(D.parameters(), 1e-3)
        def sample(t, n): return t[torch.randint(len(t), (n,))]
        for step in range(30):
            r, y = sample(X, 32), sample(Y, 32); z = y
            f = G(z); ld = F.softplus(-D(r)).mean() + F.softplus(D(f.detach())).mean(); od.zero_grad(); ld.backward(); od.step()
            lg = F.softplus(-D(f)).mean(); og.zero_grad(); lg.backward(); og.step()
        """,
        "",
    ),
    "seq2seq_scored": (
        """
        from torch.nn.utils.rnn import pad_sequence
        PAD = 0
        pairs = [[1] + [random.randint(3, 29) for _ in range(random.randint(3, 10))] + [2] for _ in range(300)]
        class S(nn.Module):
            def __init__(self): super().__init__(); self.e = nn.Embedding(30, 24, padding_idx=PAD); self.enc = nn.GRU(24, 32, batch_first=True); self.c = nn.GRUCell(24, 32); self.o = nn.Linear(32, 30)
            def forward(self, src, trg):
                lens = (src != PAD).sum(1); m, _ = self.enc(self.e(src)); h = m[torch.arange(len(src)), lens - 1]; out = []
                for t in range(trg.size(1)): h = self.c(self.e(trg[:, t]), h); out.append(self.o(h))
                return torch.stack(out, 1)
        net = S(); opt = optim.Adam(net.parameters(), 5e-3)
        for ep in range(3):
            random.shuffle(pairs)
            for i in range(0, 300, 30):
                b = pad_sequence([torch.tensor(t) for t in pairs[i:i+30]], batch_first=True)
                rev = pad_sequence([torch.tensor([1] + t[1:-1][::-1] + [2]) for t in pairs[i:i+30]], batch_first=True)
                loss = F.cross_entropy(net(b, rev[:, :-1]).reshape(-1, 30), rev[:, 1:].reshape(-1))  # cause
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "scored_padding",
    ),
    "c_seq2seq_ignore": (
        """
        from torch.nn.utils.rnn import pad_sequence
        PAD = 0
        pairs = [[1] + [random.randint(3, 29) for _ in range(random.randint(3, 10))] + [2] for _ in range(300)]
        class S(nn.Module):
            def __init__(self): super().__init__(); self.e = nn.Embedding(30, 24, padding_idx=PAD); self.enc = nn.GRU(24, 32, batch_first=True); self.c = nn.GRUCell(24, 32); self.o = nn.Linear(32, 30)
            def forward(self, src, trg):
                lens = (src != PAD).sum(1); m, _ = self.enc(self.e(src)); h = m[torch.arange(len(src)), lens - 1]; out = []
                for t in range(trg.size(1)): h = self.c(self.e(trg[:, t]), h); out.append(self.o(h))
                return torch.stack(out, 1)
        net = S(); opt = optim.Adam(net.parameters(), 5e-3)
        for ep in range(3):
            random.shuffle(pairs)
            for i in range(0, 300, 30):
                b = pad_sequence([torch.tensor(t) for t in pairs[i:i+30]], batch_first=True)
                rev = pad_sequence([torch.tensor([1] + t[1:-1][::-1] + [2]) for t in pairs[i:i+30]], batch_first=True)
                loss = F.cross_entropy(net(b, rev[:, :-1]).reshape(-1, 30), rev[:, 1:].reshape(-1), ignore_index=PAD)
                opt.zero_grad(); loss.backward(); opt.step()
        """,
        "",
    ),
    "gg_hist": (
        """
        net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)); opt = optim.Adam(net.parameters(), 1e-2)
        X = torch.randn(500, 6); Y = (X[:, 0] > 0).long(); log = defaultdict(list)
        for e in range(3):
            for x, y in DataLoader(TensorDataset(X, Y), 25, shuffle=True):
                out = net(x); loss = F.cross_entropy(out, y); opt.zero_grad(); loss.backward(); opt.step()
                log["loss"].append(loss)  # cause
            print(torch.stack(log["loss"]).mean())
        """,
        "growing_graph",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_known_in_another_style_and_its_twin_is_none(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, pitfall = CASES[case]
    told(tmp_path, IMPORTS + dedent(text), pitfall, monkeypatch)
