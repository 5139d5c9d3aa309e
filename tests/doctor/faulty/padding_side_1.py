"""A small language model that is asked to go on with prompts of different lengths."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=48,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
texts = torch.randint(3, 48, (16, 10))
for _update in range(4):
    optimizer.zero_grad()
    model(input_ids=texts, labels=texts).loss.backward()
    optimizer.step()
model.eval()
lengths = torch.tensor([3, 6, 5, 6])
mask = (torch.arange(6) < lengths[:, None]).long()
prompts = texts[:4, :6] * mask
print(model.generate(prompts, attention_mask=mask, max_new_tokens=4, do_sample=False))  # <- here
