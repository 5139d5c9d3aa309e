"""A causal model is tuned on padded texts whose labels are a plain copy of the tokens, padding and all."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

PAD, BOS, EOS = 0, 1, 2


def tokenise(texts, max_length):
    ids = torch.full((len(texts), max_length), PAD)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        tokens = [BOS, *text, EOS]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return ids, mask


def collate(texts):
    input_ids, attention_mask = tokenise(texts, 16)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": input_ids.clone()}


def main():
    torch.manual_seed(3)
    texts = [torch.randint(3, 60, (int(torch.randint(3, 12, (1,))),)).tolist() for _ in range(96)]
    loader = DataLoader(texts, batch_size=8, shuffle=True, collate_fn=collate)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config)
    optim = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    model.train()
    for batch in loader:
        loss = model(**batch).loss  # <- here
        loss.backward()
        optim.step()
        optim.zero_grad()
    print("loss", loss.item())


main()
