"""Words and pairs. Specials as in torchtext's tutorials: unk 0, pad 1, sos 2, eos 3."""
import random

import torch
from torch.nn.utils.rnn import pad_sequence

SPECIALS = ["<unk>", "<pad>", "<sos>", "<eos>"]
DIGITS = {digit: word for digit, word in zip("0123456789", ["zu", "on", "tva", "dre", "fir", "fem", "ses", "syv", "ott", "nin"])}
SOURCE = {token: number for number, token in enumerate([*SPECIALS, *DIGITS])}
TARGET = {token: number for number, token in enumerate([*SPECIALS, *DIGITS.values(), "tusen", "hun", "ti"])}


def say(number):
    out = []
    for place, digit in enumerate(reversed(number)):
        out = [DIGITS[digit], *(["ti", "hun", "tusen"][(place - 1) % 3 : (place - 1) % 3 + 1] if place else []), *out]
    return out


def numericalize(table, tokens):
    return torch.tensor([table["<sos>"], *(table[token] for token in tokens), table["<eos>"]])


def collate(batch):
    sources = pad_sequence([source for source, _ in batch], batch_first=True, padding_value=SOURCE["<pad>"])
    targets = pad_sequence([target for _, target in batch], batch_first=True, padding_value=TARGET["<pad>"])
    return sources, targets


_rng = random.Random(6)
_numbers = [str(_rng.randint(1, 10 ** _rng.randint(1, 7))) for _ in range(832)]
PAIRS = [(numericalize(SOURCE, number), numericalize(TARGET, say(number))) for number in _numbers]
