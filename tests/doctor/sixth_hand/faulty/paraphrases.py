"""Embeddings of sentences: pairs that say the same, against all others of the batch, by a small BERT."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

SYNONYMS = [["quick", "fast", "rapid"], ["dog", "hound"], ["house", "home"], ["buy", "purchase"], ["big", "large", "huge"],
            ["child", "kid"], ["car", "auto"], ["begin", "start"], ["happy", "glad"], ["speak", "talk"], ["film", "movie"]]
WORDS = sorted(word for group in SYNONYMS for word in group)
CODE = {word: number + 1 for number, word in enumerate(WORDS)}


def make_pairs(count, seed):
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        meanings = rng.sample(SYNONYMS, rng.randint(2, 9))
        first, second = ([rng.choice(group) for group in meanings] for _ in range(2))
        rng.shuffle(second)
        pairs.append((first, second))
    return pairs


def encode(texts):
    longest = max(map(len, texts))
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, words in enumerate(texts):
        ids[row, : len(words)] = torch.tensor([CODE[word] for word in words])
        mask[row, : len(words)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def collate(pairs):
    return encode([first for first, _ in pairs]), encode([second for _, second in pairs])


class SentenceEncoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        config = BertConfig(vocab_size=len(WORDS) + 1, hidden_size=width, num_hidden_layers=2, num_attention_heads=4,
                            intermediate_size=2 * width, max_position_embeddings=32, pad_token_id=0)
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, batch):
        hidden = self.bert(**batch).last_hidden_state
        pooled = hidden.mean(dim=1)  # <- here
        return F.normalize(pooled, dim=-1)


def main():
    torch.manual_seed(1)
    loader = DataLoader(make_pairs(640, 1), batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)
    model = SentenceEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for epoch in range(3):
        hits = 0
        for first, second in loader:
            similarity = model(first) @ model(second).T / 0.1
            target = torch.arange(len(similarity))
            loss = (F.cross_entropy(similarity, target) + F.cross_entropy(similarity.T, target)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (similarity.argmax(1) == target).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, found in the batch {hits / len(loader) / 32:.3f}")


if __name__ == "__main__":
    main()
