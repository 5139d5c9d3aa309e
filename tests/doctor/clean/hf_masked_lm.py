"""Masked language modelling with transformers: a tokenizer, padding, fifteen percent masked, a pooler nobody uses."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    get_scheduler,
)

torch.manual_seed(0)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *[f"w{i}" for i in range(60)]]
raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
raw.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw,
    pad_token="[PAD]",
    unk_token="[UNK]",
    cls_token="[CLS]",
    sep_token="[SEP]",
    mask_token="[MASK]",
)
texts = [" ".join(f"w{(7 * row + 3 * i) % 60}" for i in range(5 + row % 9)) for row in range(48)]
rows = [tokenizer(text, truncation=True, max_length=14) for text in texts]
collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
train = DataLoader(rows[:40], batch_size=8, shuffle=True, collate_fn=collate)
valid = DataLoader(rows[40:], batch_size=8, collate_fn=collate)
config = BertConfig(
    vocab_size=65, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
model = BertForMaskedLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=2 * len(train))
for _epoch in range(2):
    model.train()
    for batch in train:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    model.eval()
    for batch in valid:
        with torch.no_grad():
            model(**batch).logits.argmax(dim=-1)
