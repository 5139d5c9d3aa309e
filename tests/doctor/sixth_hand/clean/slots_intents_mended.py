"""What is asked for, and which words say it: an encoder below two heads, each module with its own helper."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

WORDS, SLOTS, INTENTS, LENGTH = 60, 4, 3, 10


def questions(count, seed):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(10, WORDS, (count, LENGTH), generator=generator)
    intents = torch.randint(0, INTENTS, (count,), generator=generator)
    words[:, 0] = intents * 3 + torch.randint(0, 3, (count,), generator=generator)
    slots = (words >= 45).long() + (words >= 52).long() + (words < 10).long() * 3
    return TensorDataset(words, slots, intents)


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)

    def forward(self, words):
        return self.rnn(self.embed(words))[0]


class SlotHead(nn.Module):
    def __init__(self, encoder, width=64):
        super().__init__()
        self.encoder = encoder
        self.out = nn.Linear(width, SLOTS)

    def forward(self, states):
        return self.out(states)


class IntentHead(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.out = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, INTENTS))

    def forward(self, states):
        return self.out(states.mean(1))


def collect(*modules):
    parameters = []
    for module in modules:
        parameters.extend(p for p in module.parameters() if all(p is not q for q in parameters))
    return parameters


def measure(encoder, slot_head, intent_head, loader):
    for module in (encoder, slot_head, intent_head):
        module.eval()
    slot_hits = intent_hits = rows = 0
    with torch.no_grad():
        for words, slots, intents in loader:
            states = encoder(words)
            slot_hits += (slot_head(states).argmax(-1) == slots).sum().item()
            intent_hits += (intent_head(states).argmax(-1) == intents).sum().item()
            rows += len(words)
    return slot_hits / rows / LENGTH, intent_hits / rows


def main():
    torch.manual_seed(31)
    train, test = DataLoader(questions(512, 1), 32, shuffle=True), DataLoader(questions(128, 2), 64)
    encoder = Encoder()
    slot_head, intent_head = SlotHead(encoder), IntentHead()
    optimizer = torch.optim.SGD(collect(encoder, slot_head, intent_head), lr=0.3, momentum=0.9)
    for epoch in range(4):
        for module in (encoder, slot_head, intent_head):
            module.train()
        for words, slots, intents in train:
            states = encoder(words)
            loss = F.cross_entropy(slot_head(states).flatten(0, 1), slots.flatten()) + F.cross_entropy(intent_head(states), intents)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        slot_score, intent_score = measure(encoder, slot_head, intent_head, test)
        print(f"epoch {epoch}: loss {loss.item():.3f}, slots {slot_score:.3f}, intents {intent_score:.3f}")


if __name__ == "__main__":
    main()
