import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter(object):
    def __init__(self):
        self.sum, self.count, self.avg = 0.0, 0, 0.0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def calculate_accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).float().mean().item()


def moving_squares(n, seed, frames=6, size=12):
    """Clips of a square that goes left, right, up or down."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 4, (n,), generator=g)
    clips = 0.2 * torch.randn(n, frames, 1, size, size, generator=g)
    start = torch.randint(0, size, (n, 2), generator=g)
    step = torch.tensor([[0, -1], [0, 1], [-1, 0], [1, 0]])
    for i in range(n):
        for t in range(frames):
            y, x = (start[i] + t * step[targets[i]]) % size
            rows, cols = (y + torch.arange(3)) % size, (x + torch.arange(3)) % size
            clips[i, t, 0, rows[:, None], cols[None]] += 1.0
    return clips, targets


class EncoderCNN(nn.Module):
    def __init__(self, embed_dim=32):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, padding_mode="circular")
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, padding_mode="circular")
        self.fc = nn.Linear(16 * 6 * 6, embed_dim)

    def forward(self, x):
        b, t = x.shape[:2]
        x = F.relu(self.conv1(x.flatten(0, 1)))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1)).view(b, t, -1)


class DecoderRNN(nn.Module):
    def __init__(self, embed_dim=32, hidden=64, num_classes=4, drop_p=0.1):
        super().__init__()
        self.lstm = nn.LSTM(embed_dim, hidden, batch_first=True)
        self.fc1 = nn.Linear(hidden, 32)
        self.fc2 = nn.Linear(32, num_classes)
        self.drop = nn.Dropout(drop_p)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc2(self.drop(F.relu(self.fc1(out[:, -1]))))


def train_epoch(encoder_cnn, decoder_rnn, data_loader, criterion, optimizer, epoch, opt):
    encoder_cnn.train()
    decoder_rnn.train()

    train_loss = 0.0
    losses = AverageMeter()
    accuracies = AverageMeter()
    for batch_idx, (data, targets) in enumerate(data_loader):
        outputs = decoder_rnn(encoder_cnn(data))
        loss = criterion(outputs, targets)
        acc = calculate_accuracy(outputs, targets)

        train_loss += loss.item()
        losses.update(loss.item(), data.size(0))
        accuracies.update(acc, data.size(0))

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if (batch_idx + 1) % opt.log_interval == 0:
            avg_loss = train_loss / opt.log_interval
            print('Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}'.format(
                epoch, (batch_idx + 1) * len(data), len(data_loader.dataset),
                100. * (batch_idx + 1) / len(data_loader), avg_loss))
            train_loss = 0.0

    print('Train set ({:d} samples): Average loss: {:.4f}\tAcc: {:.4f}%'.format(
        len(data_loader.dataset), losses.avg, accuracies.avg * 100))


def val_epoch(encoder_cnn, decoder_rnn, data_loader, criterion):
    encoder_cnn.eval()
    decoder_rnn.eval()
    losses, accuracies = AverageMeter(), AverageMeter()
    with torch.no_grad():
        for data, targets in data_loader:
            outputs = decoder_rnn(encoder_cnn(data))
            losses.update(criterion(outputs, targets).item(), data.size(0))
            accuracies.update(calculate_accuracy(outputs, targets), data.size(0))
    print('Validation set ({:d} samples): Average loss: {:.4f}\tAcc: {:.4f}%'.format(
        len(data_loader.dataset), losses.avg, accuracies.avg * 100))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--log_interval', type=int, default=10)
    parser.add_argument('--n_epochs', type=int, default=6)
    opt = parser.parse_args()
    torch.manual_seed(1)
    train_x, train_y = moving_squares(960, seed=10)
    val_x, val_y = moving_squares(240, seed=11)
    mean, std = train_x.mean(), train_x.std()
    train_loader = DataLoader(TensorDataset((train_x - mean) / std, train_y), batch_size=24, shuffle=True)
    val_loader = DataLoader(TensorDataset((val_x - mean) / std, val_y), batch_size=60)
    encoder_cnn, decoder_rnn = EncoderCNN(), DecoderRNN()
    optimizer = optim.Adam(list(encoder_cnn.parameters()) + list(decoder_rnn.parameters()), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(1, opt.n_epochs + 1):
        train_epoch(encoder_cnn, decoder_rnn, train_loader, criterion, optimizer, epoch, opt)
        val_epoch(encoder_cnn, decoder_rnn, val_loader, criterion)
