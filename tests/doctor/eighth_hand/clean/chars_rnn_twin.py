# %% [markdown]
# # Character-level LSTM
# Truncated backpropagation through one long (drawn) text.

# %%
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
rng = np.random.default_rng(1)

# %% a text of words from a small vocabulary
words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), size=rng.integers(3, 7))) for _ in range(40)]
text = " ".join(rng.choice(words, size=9000))
chars = tuple(sorted(set(text)))
char2int = {ch: i for i, ch in enumerate(chars)}
encoded = np.array([char2int[ch] for ch in text])
val_idx = int(len(encoded) * 0.9)
data, val_data = encoded[:val_idx], encoded[val_idx:]


# %%
def get_batches(arr, batch_size, seq_length):
    n_batches = (len(arr) - 1) // (batch_size * seq_length)
    n = n_batches * batch_size * seq_length
    x = torch.from_numpy(arr[:n].reshape(batch_size, -1))
    y = torch.from_numpy(arr[1 : n + 1].reshape(batch_size, -1))
    for i in range(0, x.size(1), seq_length):
        yield x[:, i : i + seq_length], y[:, i : i + seq_length]


class CharRNN(nn.Module):
    def __init__(self, n_chars, n_hidden=96, n_layers=1, drop_prob=0.2):
        super().__init__()
        self.n_layers, self.n_hidden, self.n_chars = n_layers, n_hidden, n_chars
        self.lstm = nn.LSTM(n_chars, n_hidden, n_layers, batch_first=True)
        self.dropout = nn.Dropout(drop_prob)
        self.fc = nn.Linear(n_hidden, n_chars)

    def forward(self, x, hidden):
        out, hidden = self.lstm(F.one_hot(x, self.n_chars).float(), hidden)
        return self.fc(self.dropout(out)), hidden


# %%
net = CharRNN(len(chars))
opt = torch.optim.Adam(net.parameters(), lr=0.005)
criterion = nn.CrossEntropyLoss()
batch_size, seq_length, clip = 32, 32, 5

train_losses, val_losses = [], []
for e in range(4):
    h = None
    running_loss = 0
    net.train()
    for x, y in get_batches(data, batch_size, seq_length):
        if h is not None:
            h = tuple(each.detach() for each in h)
        net.zero_grad()
        output, h = net(x, h)
        loss = criterion(output.reshape(-1, len(chars)), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()
        running_loss += loss.item()
        train_losses.append(loss.item())

    net.eval()
    val_h, total = None, []
    with torch.no_grad():
        for x, y in get_batches(val_data, batch_size, seq_length):
            output, val_h = net(x, val_h)
            total.append(criterion(output.reshape(-1, len(chars)), y.reshape(-1)).item())
    val_losses.append(np.mean(total))
    print(f"Epoch: {e + 1}... running {running_loss:.2f} Val Loss: {val_losses[-1]:.4f}")
