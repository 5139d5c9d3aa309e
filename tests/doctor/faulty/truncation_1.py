"""Most texts are longer than the limit."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = ["<pad>", *[f"w{i}" for i in range(40)]]
raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>")
texts = [" ".join(f"w{i}" for i in range(6 + 2 * row)) for row in range(16)]
encoded = tokenizer(texts, truncation=True, max_length=10, padding=True)  # <- here
print(len(encoded["input_ids"]))
