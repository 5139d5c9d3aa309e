"""Names of people and places in sentences: token classification with Hugging Face's Trainer (own tokenizer and data)."""
import random
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

set_seed(8)
LABELS = ["O", "B-PER", "B-LOC"]
people = [f"{a}{b}" for a in ("an", "ber", "cor", "dor", "el") for b in ("na", "to", "ik", "us")]
places = [f"{a}{b}" for a in ("york", "wind", "stan", "mill") for b in ("ham", "ton", "ford", "by")]
twins = [f"{a}{b}" for a in ("clay", "brook") for b in ("den", "mere", "ley")]
openers = "today later often once then".split()
people_verbs, place_words = "met saw called thanked".split(), "in at near towards".split()
fillers = "the old river was quiet and we walked home again slowly".split()


def sentence(rng):
    """`twins` are people after a verb and places after a preposition."""
    words, tags = [rng.choice(openers)], [0]
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice([1, 2])
        words += [rng.choice(people_verbs if kind == 1 else place_words), rng.choice((people if kind == 1 else places) + twins)]
        tags += [0, kind]
        for _ in range(rng.randint(0, 3)):
            words.append(rng.choice(fillers))
            tags.append(0)
    return words, tags


vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + people + places + twins + openers + people_verbs + place_words + fillers
core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(dict.fromkeys(vocabulary))}, unk_token="[UNK]"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
)


class NerDataset(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.examples = [sentence(rng) for _ in range(count)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        words, tags = self.examples[i]
        ids = [tokenizer.cls_token_id, *tokenizer.convert_tokens_to_ids(words), tokenizer.sep_token_id]
        return {"input_ids": ids, "labels": [-100, *tags, -100]}


@dataclass
class NerCollator:
    max_length: int = 32

    def __call__(self, features):
        longest = self.max_length
        batch = {"input_ids": [], "labels": []}
        for f in features:
            gap = longest - len(f["input_ids"])
            batch["input_ids"].append(f["input_ids"] + [tokenizer.pad_token_id] * gap)
            batch["labels"].append(f["labels"] + [-100] * gap)
        return {k: torch.tensor(v) for k, v in batch.items()}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    guesses = np.argmax(logits, axis=-1)
    counted = labels != -100
    found = ((guesses == labels) & (labels > 0) & counted).sum()
    precision = found / max(1, ((guesses > 0) & counted).sum())
    recall = found / ((labels > 0) & counted).sum()
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / max(1e-9, precision + recall)}


def main():
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
        max_position_embeddings=40, num_labels=len(LABELS), id2label=dict(enumerate(LABELS)),
        label2id={name: i for i, name in enumerate(LABELS)},
    )
    args = TrainingArguments(
        output_dir="ner_out", num_train_epochs=4, per_device_train_batch_size=16, per_device_eval_batch_size=32,
        learning_rate=2e-3, warmup_steps=5, weight_decay=0.01, eval_strategy="epoch", save_strategy="no", logging_steps=25,
        report_to="none", use_cpu=True, seed=8, disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForTokenClassification(config), args=args, train_dataset=NerDataset(400, 1), eval_dataset=NerDataset(80, 2),
        data_collator=NerCollator(), compute_metrics=compute_metrics,
    )
    trainer.train()
    print({k: round(float(v), 3) for k, v in trainer.evaluate().items() if k.startswith("eval_") and k[5:] in ("loss", "f1")})


if __name__ == "__main__":
    main()
