"""Moods of short reviews: BERT from a configuration, the Trainer of transformers, the body frozen for the first epoch."""
import random

import numpy as np
import torch
from torch.utils.data import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GOOD, BAD, FILL = ["great", "warm", "kind"], ["bad", "cold", "rude"], ["the", "room", "staff", "was", "and", "very", "pool", "bed", "near", "old"]


def build_tokenizer():
    vocabulary = {word: number for number, word in enumerate([*SPECIALS, *GOOD, *BAD, *FILL])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def reviews(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        label = rng.randrange(2)
        words = [rng.choice((BAD, GOOD)[label]) for _ in range(2)] + rng.choices(FILL, k=rng.randint(4, 14))
        rng.shuffle(words)
        yield " ".join(words), label


class Encoded(Dataset):
    def __init__(self, rows, tokenizer):
        texts, self.labels = zip(*rows)
        self.encodings = tokenizer(list(texts), truncation=True, max_length=32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {**{name: values[index] for name, values in self.encodings.items()}, "labels": self.labels[index]}


class GradualUnfreeze(TrainerCallback):
    """Opens the body after the first epoch."""

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        if round(state.epoch) == 1:
            for parameter in model.bert.parameters():
                parameter.requires_grad = True


def compute_metrics(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def main():
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    train_set, eval_set = Encoded(list(reviews(480, 1)), tokenizer), Encoded(list(reviews(96, 2)), tokenizer)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=40, num_labels=2, pad_token_id=0,
    ))
    args = TrainingArguments(
        output_dir="reviews_out", num_train_epochs=3, per_device_train_batch_size=16, per_device_eval_batch_size=32,
        learning_rate=3e-3, eval_strategy="epoch", save_strategy="no", logging_steps=15, report_to="none", use_cpu=True, seed=1,
    )
    callbacks, optimizers = [], (None, None)
    for parameter in model.bert.parameters():
        parameter.requires_grad = False
    callbacks = [GradualUnfreeze()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    optimizers = (optimizer, None)
    trainer = Trainer(
        model=model, args=args, train_dataset=train_set, eval_dataset=eval_set, processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer), compute_metrics=compute_metrics, callbacks=callbacks, optimizers=optimizers,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
