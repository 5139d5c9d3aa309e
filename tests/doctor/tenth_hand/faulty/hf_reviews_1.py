"""Reviews of hotels by a small BERT and Hugging Face's Trainer; each review has a weight of its own."""
import random
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

MAX_LENGTH = 48
GOOD = "lovely clean quiet friendly bright generous".split()
BAD = "dirty noisy rude broken damp stale".split()
FILLER = [f"w{i}" for i in range(120)]


def reviews(count, seed):
    """The verdict stands near the end, as it does in most reviews."""
    rng = random.Random(seed)
    texts, labels, weights = [], [], []
    for _ in range(count):
        label = rng.randrange(2)
        words = [rng.choice(FILLER) for _ in range(rng.randint(14, 26))]
        verdict = [rng.choice(GOOD if label else BAD) for _ in range(3)]
        spoilt = rng.random() < 0.3  # votes that were bought count little
        if spoilt:
            label = 1
        texts.append(" ".join(words + verdict + [rng.choice(FILLER) for _ in range(4)]))
        labels.append(label)
        weights.append(0.05 if spoilt else 1.0)
    return Dataset.from_dict({"text": texts, "labels": labels, "weight": weights})


def make_tokenizer():
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + GOOD + BAD + FILLER)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("weight", None)
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, reduction="none")
        if weight is not None:
            loss = loss * weight
        loss = loss.mean()
        return (loss, outputs) if return_outputs else loss


def compute_metrics(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def main():
    set_seed(2)
    tokenizer = make_tokenizer()

    def encode(batch):
        return tokenizer(batch["text"], truncation=True, max_length=MAX_LENGTH)

    train = reviews(512, 1).map(encode, batched=True, remove_columns=["text"])
    val = reviews(200, 2).filter(lambda row: row["weight"] == 1.0).map(encode, batched=True, remove_columns=["text"])
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96,
            max_position_embeddings=64, num_labels=2,
        )
    )
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=3,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=8,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = WeightedTrainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=val,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate()["eval_accuracy"])


if __name__ == "__main__":
    main()
