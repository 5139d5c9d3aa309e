"""Padded rows as they should be: a mask for BERT, labels without padding and with the end, a right-padded GPT-2 without a mask."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
sizes = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2}
bert = BertForSequenceClassification(
    BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
)
gpt = GPT2LMHeadModel(GPT2Config(**sizes, n_positions=16, n_embd=16, n_layer=1, n_head=2))
bert.train()
gpt.train()
optimizer = torch.optim.AdamW([*bert.parameters(), *gpt.parameters()], lr=1e-3)
for _ in range(6):
    lengths = torch.tensor([12, *torch.randint(4, 12, (7,)).tolist()])
    places = torch.arange(12)[None]
    mask = (places < lengths[:, None]).long()
    ids = torch.where(places == lengths[:, None] - 1, 2, torch.randint(5, 60, (8, 12)) * mask)
    padded = ids * mask
    labels = padded.masked_fill(mask == 0, -100)
    loss = bert(input_ids=padded, attention_mask=mask, labels=lengths % 2).loss
    loss = loss + gpt(input_ids=padded, attention_mask=mask, labels=labels).loss
    loss = loss + gpt(input_ids=padded, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
