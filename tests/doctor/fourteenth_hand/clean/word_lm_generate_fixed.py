import torch
import torch.nn as nn

torch.manual_seed(2)

ntokens = 60
transition = torch.softmax(1.2 * torch.randn(ntokens, ntokens), dim=1)


def write_text(n):
    words = [0]
    for _ in range(n):
        words.append(int(torch.multinomial(transition[words[-1]], 1)))
    return torch.tensor(words)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, nbatch).t().contiguous()


train_data = batchify(write_text(12000), 20)
val_data = batchify(write_text(3000), 20)
bptt = 20


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, inp, hidden):
        output, hidden = self.rnn(self.encoder(inp), hidden)
        return self.decoder(output), hidden


model = RNNModel(ntokens, 32, 64)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)


def repackage(hidden):
    return None if hidden is None else tuple(h.detach() for h in hidden)


def run(data, train):
    model.train(train)
    hidden, total, count = None, 0.0, 0
    with torch.set_grad_enabled(train):
        for i in range(0, data.size(0) - 1, bptt):
            n = min(bptt, data.size(0) - 1 - i)
            x, y = data[i:i + n], data[i + 1:i + 1 + n]
            hidden = repackage(hidden)
            output, hidden = model(x, hidden)
            loss = criterion(output.reshape(-1, ntokens), y.reshape(-1))
            if train:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
            total += loss.item() * n
            count += n
    return total / count


for epoch in range(5):
    train_loss = run(train_data, True)
    val_loss = run(val_data, False)
    print(f"epoch {epoch} train ppl {2.71828 ** train_loss:.2f} valid ppl {2.71828 ** val_loss:.2f}")

model.eval()
temperature = 1.0
inp, hidden, text = torch.zeros(1, 1, dtype=torch.long), None, []
with torch.no_grad():
    for _ in range(100):
        output, hidden = model(inp, hidden)
        word_weights = output.squeeze().div(temperature).exp().cpu()
        word_idx = torch.multinomial(word_weights, 1)[0]
        inp.fill_(word_idx)
        text.append(int(word_idx))
print("words:", text[:30])
print("distinct words in 100:", len(set(text)), " distinct pairs:", len(set(zip(text, text[1:]))))
