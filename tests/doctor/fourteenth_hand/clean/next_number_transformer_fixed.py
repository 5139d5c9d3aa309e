import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')

SEQ_LEN = 20
EMBED_DIM = 32
N_HEAD = 1

starts = list(range(0, 200))
random.shuffle(starts)
train_starts, test_starts = starts[:160], starts[160:]


def batch_of(idx):
    seqs = torch.stack([torch.arange(i, i + SEQ_LEN + 1, dtype=torch.float32) for i in idx])
    seqs = (seqs - 110.0) / 58.0
    return seqs[:, :-1].unsqueeze(-1).to(device), seqs[:, -1:].to(device)


class MyModel(nn.Module):
    def __init__(self, seq_len):
        super().__init__()
        self.embed = nn.Linear(1, EMBED_DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(1, seq_len, EMBED_DIM))
        layer = nn.TransformerEncoderLayer(EMBED_DIM, N_HEAD, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.trans = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.lin = nn.Linear(EMBED_DIM, 1)

    def forward(self, x):
        y = self.trans(self.embed(x) + self.pos)
        return self.lin(y.mean(dim=1))


model = MyModel(SEQ_LEN).to(device)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

running_loss = 0.0
for step in range(400):
    model.train()
    training, labels = batch_of(random.sample(train_starts, 16))
    optimizer.zero_grad()
    outputs = model(training)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()

    running_loss += loss.item()
    if step % 100 == 99:
        print(f'[{step + 1}] loss: {running_loss / 100:.4f}')
        running_loss = 0.0

model.eval()
with torch.no_grad():
    x, y = batch_of(test_starts)
    pred = model(x)
    print('held-out mse:', round(criterion(pred, y).item(), 4))
    print('predictions:', [round(v * 58 + 110, 1) for v in pred[:5, 0].tolist()])
    print('wanted:     ', [round(v * 58 + 110, 1) for v in y[:5, 0].tolist()])
