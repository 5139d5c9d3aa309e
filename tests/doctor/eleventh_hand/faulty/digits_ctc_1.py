"""Spoken digit strings without alignment: convolution, GRU and CTC, in the manner of a DeepSpeech tutorial."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

hparams = {
    "n_class": 11,
    "n_feats": 16,
    "rnn_dim": 48,
    "dropout": 0.1,
    "learning_rate": 4e-3,
    "batch_size": 20,
    "epochs": 9,
}


def spec_augment(features, generator=None):
    """Hides two bands of features and one stretch of time, as training data augmentation."""
    features = features.clone()
    for _ in range(2):
        band = int(torch.randint(0, features.size(1) - 2, (1,)))
        features[:, band : band + 2] = 0
    start = int(torch.randint(0, max(1, features.size(0) - 3), (1,)))
    features[start : start + 2] = 0
    return features


class DigitStrings(Dataset):
    """Each digit (1 to 10; 0 is the blank) lasts 3 to 5 frames of its own shape, with pauses and noise."""

    def __init__(self, count, seed, train):
        g = torch.Generator().manual_seed(seed)
        shapes = torch.randn(11, hparams["n_feats"], generator=torch.Generator().manual_seed(7))
        self.train, self.items = train, []
        for _ in range(count):
            digits = torch.randint(1, 11, (int(torch.randint(2, 5, (1,), generator=g)),), generator=g)
            frames = []
            for d in digits.tolist():
                frames.append(torch.zeros(int(torch.randint(1, 3, (1,), generator=g)), hparams["n_feats"]))
                frames.append(shapes[d].repeat(int(torch.randint(3, 6, (1,), generator=g)), 1))
            features = torch.cat(frames)
            self.items.append((features + 0.3 * torch.randn(features.shape, generator=g), digits))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        features, digits = self.items[i]
        if self.train:
            features = spec_augment(features)
        return features, digits


def data_processing(batch):
    features, digits = zip(*batch)
    input_lengths = torch.tensor([len(f) for f in features])
    label_lengths = torch.tensor([len(d) for d in digits])
    return pad_sequence(features, batch_first=True), torch.cat(digits), input_lengths, label_lengths


class SpeechRecognitionModel(nn.Module):
    def __init__(self, n_class, n_feats, rnn_dim, dropout):
        super().__init__()
        self.cnn = nn.Conv1d(n_feats, rnn_dim, 3, padding=1)
        self.norm = nn.LayerNorm(rnn_dim)
        self.rnn = nn.GRU(rnn_dim, 2 * rnn_dim, batch_first=True)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * rnn_dim, n_class))

    def forward(self, x):
        x = F.gelu(self.norm(self.cnn(x.transpose(1, 2)).transpose(1, 2)))
        x, _ = self.rnn(x)
        return self.classifier(x)


def greedy_decode(output, lengths):
    for row, length in zip(output.argmax(-1), lengths.tolist()):
        best = torch.unique_consecutive(row[:length])
        yield best[best != 0].tolist()


def train(model, loader, criterion, optimizer, scheduler, epoch):
    model.train()
    for batch_idx, (features, labels, input_lengths, label_lengths) in enumerate(loader):
        optimizer.zero_grad()
        output = model(features)
        loss = criterion(output.transpose(0, 1), labels, input_lengths, label_lengths)
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(f"Train Epoch: {epoch} Loss: {loss.item():.4f}", end="  ")


@torch.no_grad()
def test(model, loader):
    model.eval()
    right = total = 0
    for features, labels, input_lengths, label_lengths in loader:
        guesses = greedy_decode(model(features), input_lengths)
        for guess, truth in zip(guesses, labels.split(label_lengths.tolist())):
            right += guess == truth.tolist()
            total += 1
    print(f"strings that are right: {right / total:.3f}")


def main():
    torch.manual_seed(7)
    train_loader = DataLoader(DigitStrings(500, 1, train=True), hparams["batch_size"], shuffle=True, collate_fn=data_processing)
    test_loader = DataLoader(DigitStrings(120, 2, train=False), hparams["batch_size"], collate_fn=data_processing)
    model = SpeechRecognitionModel(hparams["n_class"], hparams["n_feats"], hparams["rnn_dim"], hparams["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), hparams["learning_rate"])
    criterion = nn.CTCLoss(blank=0, zero_infinity=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=hparams["learning_rate"], steps_per_epoch=len(train_loader), epochs=hparams["epochs"]
    )
    for epoch in range(1, hparams["epochs"] + 1):
        train(model, train_loader, criterion, optimizer, scheduler, epoch)
        test(model, test_loader)


if __name__ == "__main__":
    main()
