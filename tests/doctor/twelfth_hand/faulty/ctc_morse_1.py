import random
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

# Letters as tones: each letter lasts 4 to 6 frames at its own two bands, with gaps between.
ALPHABET = "abcdefgh"
BLANK = 0
char2id = {c: i for i, c in enumerate(ALPHABET)}
id2char = {i: c for c, i in char2id.items()}
N_BANDS = 12


class ToneDataset(Dataset):
    def __init__(self, n, seed, noise=0.35):
        rng = random.Random(seed)
        gen = torch.Generator().manual_seed(seed)
        self.samples = []
        for _ in range(n):
            text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(2, 7)))
            frames = []
            for c in text:
                k = char2id[c]
                on = torch.zeros(rng.randint(4, 6), N_BANDS)
                on[:, k] = 1.0
                on[:, (3 * k) % N_BANDS] += 0.7
                frames += [on, torch.zeros(rng.randint(1, 3), N_BANDS)]
            feats = torch.cat(frames)
            feats = feats + noise * torch.randn(feats.shape, generator=gen)
            self.samples.append((feats, text))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        return self.samples[idx]


def collate(batch):
    feats = pad_sequence([f for f, _ in batch], batch_first=True)
    feat_lens = torch.tensor([len(f) for f, _ in batch])
    targets = torch.tensor([char2id[c] for _, text in batch for c in text])
    target_lens = torch.tensor([len(text) for _, text in batch])
    return feats, feat_lens, targets, target_lens, [text for _, text in batch]


class AcousticModel(nn.Module):
    SUBSAMPLE = 2

    def __init__(self, hidden=40):
        super().__init__()
        self.conv = nn.Conv1d(N_BANDS, hidden, 3, stride=self.SUBSAMPLE, padding=1)
        self.rnn = nn.GRU(hidden, hidden, bidirectional=True, batch_first=True)
        self.proj = nn.Linear(2 * hidden, len(ALPHABET) + 1)

    def out_lens(self, feat_lens):
        return (feat_lens - 1) // self.SUBSAMPLE + 1

    def forward(self, feats, feat_lens):
        x = torch.relu(self.conv(feats.transpose(1, 2))).transpose(1, 2)
        lens = self.out_lens(feat_lens)
        packed = nn.utils.rnn.pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.proj(x).log_softmax(dim=-1), lens


def greedy_decode(log_probs, lens):
    texts = []
    for row, n in zip(log_probs.argmax(-1), lens):
        best = torch.unique_consecutive(row[:n])
        texts.append("".join(id2char[int(i)] for i in best if i != BLANK))
    return texts


def edit_distance(a, b):
    prev = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        cur = [i]
        for j, cb in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + (ca != cb)))
        prev = cur
    return prev[-1]


def validate(model, loader):
    model.eval()
    errors = letters = 0
    with torch.no_grad():
        for feats, feat_lens, _, _, texts in loader:
            for hyp, ref in zip(greedy_decode(*model(feats, feat_lens)), texts):
                errors += edit_distance(hyp, ref)
                letters += len(ref)
    return errors / letters


torch.manual_seed(21)
train_loader = DataLoader(ToneDataset(700, seed=1), batch_size=25, shuffle=True, collate_fn=collate)
dev_loader = DataLoader(ToneDataset(120, seed=2), batch_size=40, collate_fn=collate)
model = AcousticModel()
ctc = nn.CTCLoss(blank=BLANK)
opt = torch.optim.Adam(model.parameters(), lr=6e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.85)

for epoch in range(6):
    model.train()
    total = 0.0
    for feats, feat_lens, targets, target_lens, _ in train_loader:
        log_probs, out_lens = model(feats, feat_lens)
        loss = ctc(log_probs.transpose(0, 1), targets, out_lens, target_lens)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        total += loss.item()
    sched.step()
    print(f"epoch {epoch} ctc {total / len(train_loader):.3f} letter error rate {validate(model, dev_loader):.3f}")
