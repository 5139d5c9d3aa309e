"""Connectionist temporal classification on synthetic utterances of digits."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(30)
DIGITS = "0123456789"
INDEX = {c: i for i, c in enumerate(DIGITS)}
BLANK = len(DIGITS)
SHAPES = torch.randn(10, 12)


def utterance():
    text = "".join(DIGITS[i] for i in torch.randint(0, 10, (int(torch.randint(2, 5, (1,))),)).tolist())
    frames = []
    for c in text:
        frames += [0.3 * torch.randn(int(torch.randint(1, 3, (1,))), 12)]
        frames += [SHAPES[int(c)] + 0.3 * torch.randn(int(torch.randint(2, 5, (1,))), 12)]
    return torch.cat(frames), torch.tensor([INDEX[c] for c in text])


def collate(rows):
    specs, labels = zip(*rows)
    return pad_sequence(specs, batch_first=True), torch.cat(labels), torch.tensor([len(s) for s in specs]), torch.tensor([len(l) for l in labels])


class SpeechModel(nn.Module):
    def __init__(self, n_feats=12, dim=48, n_class=len(DIGITS) + 1):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(n_feats, dim, 3, padding=1), nn.GELU())
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * dim, n_class)

    def forward(self, spec):
        x = self.conv(spec.transpose(1, 2)).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.classifier(x)


def greedy(log_probs, lengths):
    texts = []
    for row, n in zip(log_probs.argmax(-1).t(), lengths):
        path = torch.unique_consecutive(row[:n])
        texts.append(path[path != BLANK].tolist())
    return texts


train_set, test_set = [utterance() for _ in range(640)], [utterance() for _ in range(100)]
train_loader = torch.utils.data.DataLoader(train_set, batch_size=20, shuffle=True, collate_fn=collate)
test_loader = torch.utils.data.DataLoader(test_set, batch_size=50, collate_fn=collate)
model = SpeechModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)

for epoch in range(1, 6):
    model.train()
    for spec, labels, in_len, out_len in train_loader:
        optimizer.zero_grad()
        scores = model(spec)
        output = (scores - scores.logsumexp(2, keepdim=True)).transpose(0, 1)
        loss = criterion(output, labels, in_len, out_len)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    model.eval()
    exact = 0
    with torch.no_grad():
        for spec, labels, in_len, out_len in test_loader:
            output = model(spec).log_softmax(dim=2).transpose(0, 1)
            truth = [each.tolist() for each in labels.split(out_len.tolist())]
            exact += sum(a == b for a, b in zip(greedy(output, in_len), truth))
    print(f"epoch {epoch}: loss {loss.item():.3f}, {exact} of {len(test_set)} right")
