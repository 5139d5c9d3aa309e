"""A chat template already has the first token, and the tokenizer adds it once more."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

torch.manual_seed(0)
words = ["<s>", "</s>", "<pad>", *[f"w{i}" for i in range(40)]]
raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", pad_token="<pad>")
model = nn.Sequential(nn.Embedding(len(words), 16), nn.Flatten(), nn.Linear(96, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    texts = [f"<s> w{step + i} w{2 * i} w{i + 9} w{3 * i}" for i in range(8)]  # <- here
    batch = tokenizer(texts, return_tensors="pt")
    loss = nn.functional.cross_entropy(model(batch["input_ids"]), torch.randint(0, 2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
