"""Melodies, one long stream for each row of the batch; the memory of the LSTM goes on from piece to piece."""
import torch
import torch.nn as nn

NOTES, ROWS, PIECE = 24, 8, 12


def compose(length, seed):
    """A walk up and down a scale that turns after a while; one row for each voice."""
    generator = torch.Generator().manual_seed(seed)
    notes = torch.zeros(ROWS, length, dtype=torch.long)
    for row in range(ROWS):
        note, direction = int(torch.randint(0, NOTES, (1,), generator=generator)), 1
        for position in range(length):
            if torch.rand((), generator=generator) < 0.15:
                direction = -direction
            note = (note + direction) % NOTES
            notes[row, position] = note
    return notes


class Composer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(NOTES, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, NOTES)

    def begin(self):
        return tuple(torch.zeros(1, ROWS, self.lstm.hidden_size) for _ in range(2))

    def forward(self, notes, memory):
        states, memory = self.lstm(self.embed(notes), memory)
        return self.out(states), memory


def pieces(notes):
    for start in range(0, notes.shape[1] - PIECE - 1, PIECE):
        yield notes[:, start : start + PIECE], notes[:, start + 1 : start + PIECE + 1]


class Record:
    """What is drawn after the training: the loss of each piece, and how many notes were right."""

    def __init__(self):
        self.losses, self.scores, self.targets = [], [], []

    def add(self, loss, scores, targets):
        self.losses.append(loss)  # <- here
        self.scores.append(scores)  # <- here
        self.targets.append(targets)

    def report(self, epoch):
        loss = float(sum(self.losses)) / len(self.losses)
        right = (torch.cat(self.scores).argmax(-1) == torch.cat(self.targets)).float().mean().item()
        print(f"epoch {epoch}: loss {loss:.3f}, right {right:.3f} of {len(self.losses)} pieces so far")


def train(model, notes, epochs=3, lr=3e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion, record = nn.CrossEntropyLoss(), Record()
    for epoch in range(epochs):
        memory = model.begin()
        for inputs, targets in pieces(notes):
            memory = tuple(part.detach() for part in memory)
            scores, memory = model(inputs, memory)
            loss = criterion(scores.reshape(-1, NOTES), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            record.add(loss, scores, targets)  # <- here
        record.report(epoch)


@torch.no_grad()
def improvise(model, steps=16):
    model.eval()
    memory, note, played = model.begin(), torch.zeros(ROWS, 1, dtype=torch.long), []
    for _ in range(steps):
        scores, memory = model(note, memory)
        note = scores[:, -1].argmax(-1, keepdim=True)
        played.append(note[0].item())
    return played


if __name__ == "__main__":
    torch.manual_seed(14)
    composer = Composer()
    train(composer, compose(500, 14))
    print(improvise(composer))
