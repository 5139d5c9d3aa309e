"""An LSTM and a line."""
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden, layers=1):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        self.state = None

    def forward(self, window):
        out, _ = self.lstm(window)
        return self.head(out[:, -1]).squeeze(-1)
