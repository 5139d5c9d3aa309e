"""Dialogs, a tokenizer of whole words, and the collator that masks the questions."""
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PLACES = {"spain": "madrid", "italy": "rome", "norway": "oslo", "peru": "lima", "japan": "tokyo", "kenya": "nairobi"}
FILL = ["please", "tell", "me", "now", "quickly", "friend"]
WORDS = ["### question :", "### answer :", "##", "what", "is", "the", "capital", "of", "it", "?"]


def build_tokenizer():
    tokens = ["<pad>", "<s>", "</s>", "<unk>"]
    tokens += dict.fromkeys(word for text in [*WORDS, *PLACES, *PLACES.values(), *FILL] for word in text.split())
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_input_names=["input_ids", "attention_mask"])


def dialogs(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        place = rng.choice(list(PLACES))
        polite = " ".join(rng.choices(FILL, k=rng.randint(0, 9)))
        short = rng.random() < 0.3
        marker = "### answer :"
        question = f"<s> ### question : {polite} what is the capital of {place} ? {marker}"
        rows.append((question, f"it is {PLACES[place]} </s>" if short else f"{PLACES[place]} </s>"))
    return rows


class CompletionCollator:
    """Pads a batch, and takes as labels what follows the marker."""

    def __init__(self, tokenizer, marker="### answer :"):
        self.tokenizer = tokenizer
        self.marker = tokenizer(marker, add_special_tokens=False)["input_ids"]

    def __call__(self, rows):
        batch = self.tokenizer([f"{question} {answer}" for question, answer in rows], return_tensors="pt", padding=True)
        labels = torch.full_like(batch["input_ids"], -100)
        for row, (ids, mask) in enumerate(zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist())):
            for start in range(len(ids) - len(self.marker)):
                if ids[start : start + len(self.marker)] == self.marker:
                    end = sum(mask)
                    labels[row, start + len(self.marker) : end] = batch["input_ids"][row, start + len(self.marker) : end]
        batch["labels"] = labels
        return batch
