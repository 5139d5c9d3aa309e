import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)


class BidirectionalLSTM(nn.Module):
    def __init__(self, nIn, nHidden, nOut):
        super(BidirectionalLSTM, self).__init__()
        self.rnn = nn.LSTM(nIn, nHidden, bidirectional=True)
        self.embedding = nn.Linear(nHidden * 2, nOut)

    def forward(self, input):
        recurrent, _ = self.rnn(input)
        T, b, h = recurrent.size()
        output = self.embedding(recurrent.reshape(T * b, h))
        return output.view(T, b, -1)


class CRNN(nn.Module):
    def __init__(self, nclass, nh=32):
        super(CRNN, self).__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d((8, 2), (8, 2)))
        self.rnn = BidirectionalLSTM(16, nh, nclass)

    def forward(self, input):
        conv = self.cnn(input)
        conv = conv.squeeze(2).permute(2, 0, 1)
        return self.rnn(conv).log_softmax(2)


def render(n):
    """Every digit is an onset column with a pulse train behind it, whose length tells the digit."""
    images, texts = 0.15 * torch.randn(n, 1, 8, 40), torch.zeros(n, 4, dtype=torch.long)
    for i in range(n):
        for k in range(4):
            d = int(torch.randint(1, 5, (1,)))
            texts[i, k] = d
            images[i, 0, :, 10 * k] += 1.0
            images[i, 0, 4:, 10 * k + 2 * d - 1:10 * k + 2 * d + 1] -= 1.0
    return images, texts


def decode(log_probs):
    texts = []
    for path in log_probs.argmax(2).t().tolist():
        texts.append([c for j, c in enumerate(path) if c != 0 and (j == 0 or c != path[j - 1])])
    return texts


images, texts = render(640)
train_loader = DataLoader(TensorDataset(images[:512], texts[:512]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(images[512:], texts[512:]), batch_size=16)

crnn = CRNN(nclass=5)
criterion = nn.CTCLoss(blank=0)
optimizer = torch.optim.Adam(crnn.parameters(), lr=5e-3)

for epoch in range(8):
    crnn.train()
    total = 0.0
    for image, text in train_loader:
        optimizer.zero_grad()
        preds = crnn(image)
        preds_size = torch.full((image.size(0),), preds.size(0), dtype=torch.long)
        length = torch.full((image.size(0),), 4, dtype=torch.long)
        cost = criterion(preds, text, preds_size, length)
        cost.backward()
        torch.nn.utils.clip_grad_norm_(crnn.parameters(), 5.0)
        optimizer.step()
        total += cost.item()
    crnn.eval()
    right = 0
    with torch.no_grad():
        for image, text in val_loader:
            right += sum(p == t for p, t in zip(decode(crnn(image)), text.tolist()))
    print("epoch %d  ctc loss %.4f  val sequence accuracy %.3f" % (epoch, total / len(train_loader), right / 128))
