# Names letter by letter: an LSTM language model in the style of a word_language_model fork
import math
import random

import torch
import torch.nn as nn

random.seed(1111)
torch.manual_seed(1111)

# ------------------------------------------------------------ a corpus of drawn names
onsets, vowels, codas = "b br d dr f g k kl l m n p r s st t v".split(), "a e i o u ai ei".split(), ["", "n", "r", "s", "l"]


def make_name():
    name = "".join(random.choice(onsets) + random.choice(vowels) for _ in range(random.choice([1, 2, 2, 3])))
    return name + random.choice(codas) + "."


text = "".join(make_name() for _ in range(2600))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
cut = int(0.9 * len(data))

batch_size, eval_batch_size, bptt = 16, 8, 24
emsize, nhid, nlayers, dropout, clip = 24, 64, 1, 0.1, 0.5


def batchify(source, bsz):
    nbatch = source.size(0) // bsz
    return source[: nbatch * bsz].view(bsz, -1).t().contiguous()


train_data, val_data = batchify(data[:cut], batch_size), batchify(data[cut:], eval_batch_size)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, tokens, hidden):
        emb = self.drop(self.encoder(tokens))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return decoded.view(-1, self.ntoken), hidden

    def init_hidden(self, bsz):
        return torch.zeros(self.nlayers, bsz, self.nhid), torch.zeros(self.nlayers, bsz, self.nhid)


def repackage_hidden(h):
    return tuple(v.detach() for v in h)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].reshape(-1)


model = RNNModel(len(chars), emsize, nhid, nlayers, dropout)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)


def evaluate(source):
    model.eval()
    total_loss, hidden = 0.0, model.init_hidden(eval_batch_size)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, bptt):
            tokens, targets = get_batch(source, i)
            output, hidden = model(tokens, hidden)
            total_loss += len(tokens) * criterion(output, targets).item()
    return total_loss / (len(source) - 1)


def train():
    model.train()
    history = []
    hidden = model.init_hidden(batch_size)
    for i in range(0, train_data.size(0) - 1, bptt):
        tokens, targets = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(tokens, hidden)
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        history.append(loss.item())
    return sum(history) / len(history)


def generate(count=40):
    model.eval()
    token, hidden, letters = torch.tensor([[stoi["."]]]), model.init_hidden(1), []
    with torch.no_grad():
        for _ in range(count):
            output, hidden = model(token, hidden)
            token = torch.multinomial(output.softmax(-1), 1)
            letters.append(chars[token.item()])
    return "".join(letters)


for epoch in range(1, 10):
    train_loss = train()
    val_loss = evaluate(val_data)
    if epoch % 3 == 0:
        print(f"| epoch {epoch} | train {train_loss:.3f} | valid {val_loss:.3f} | ppl {math.exp(val_loss):.2f} | {generate()}")
