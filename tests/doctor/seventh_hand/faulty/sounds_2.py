"""Environmental sounds from drawn mel bands: a recogniser with augmentation in the workers."""
import torch
from torch import nn
from torch.utils.data import DataLoader

from sounds_2_parts.clips import Clips, SpecAugment
from sounds_2_parts.engine import Engine

HPARAMS = {"epochs": 3, "batch_size": 32, "max_lr": 6e-3, "workers": 2, "classes": 4}


class Recogniser(nn.Module):
    def __init__(self, bands, classes):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(bands, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU())
        self.fc = nn.Linear(32, classes)

    def forward(self, mel):
        return self.fc(self.conv(mel).amax(-1))


def main():
    torch.manual_seed(13)
    train_set, test_set = Clips(448, seed=1, transform=SpecAugment(seed=99)), Clips(101, seed=2)
    train_loader = DataLoader(train_set, HPARAMS["batch_size"], shuffle=True, num_workers=HPARAMS["workers"])
    test_loader = DataLoader(test_set, HPARAMS["batch_size"])
    engine = Engine(Recogniser(12, HPARAMS["classes"]), HPARAMS["max_lr"], HPARAMS["epochs"] * len(train_loader))
    for epoch in range(HPARAMS["epochs"]):
        loss = engine.train_epoch(train_loader)
        print(f"epoch {epoch}: {loss:.3f}, accuracy {engine.evaluate(test_loader):.2%}")


if __name__ == "__main__":
    main()
