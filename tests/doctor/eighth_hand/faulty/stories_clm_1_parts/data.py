import random
import string

import torch


class Tokenizer:
    def __init__(self):
        self.itos = ["<pad>", "<eos>", *string.ascii_lowercase, "=", "+", *string.digits]
        self.stoi = {token: index for index, token in enumerate(self.itos)}
        self.pad_token_id, self.eos_token_id = 0, 1
        self.vocab_size = len(self.itos)

    def encode(self, text):
        return [self.stoi[letter] for letter in text]


class QADataset(torch.utils.data.Dataset):
    """'ab+c=' is followed by the letters in order, and the end."""

    def __init__(self, count, seed):
        own = random.Random(seed)
        self.pairs = []
        for _ in range(count):
            letters = own.sample("abcdef", own.randint(1, 4))
            self.pairs.append(("".join(letters), "".join(sorted(letters))))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def make_collator(tokenizer):
    def collate(pairs):
        rows = [tokenizer.encode(f"{question}={answer}") + [tokenizer.eos_token_id] for question, answer in pairs]
        longest = max(len(row) for row in rows)
        input_ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
        attention_mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        labels = input_ids.clone()  # <- here
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    return collate
