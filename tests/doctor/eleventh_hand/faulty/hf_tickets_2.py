# Support tickets and their teams: sequence classification with the Trainer and datasets (a notebook as a script)
# %%
import random

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(42)

# %% tickets: a greeting, a story, and the request at the end
teams = {
    "billing": "refund invoice charge payment receipt".split(),
    "network": "router signal outage speed cable".split(),
    "account": "password login profile email username".split(),
    "shipping": "parcel courier address delay tracking".split(),
}
greetings = ["hello there", "dear team", "good morning", "hi"]
story = "i bought this last week and it was fine at first but my neighbour said that i should write to you about it".split()
asks = ["please help with my", "can you check the", "it is about the", "i need a new"]


def ticket(rng):
    team = rng.choice(list(teams))
    middle = [rng.choice(story) for _ in range(rng.randint(8, 22))]
    if rng.random() < 0.3:
        middle.insert(rng.randrange(len(middle)), rng.choice(sum(teams.values(), [])))
    words = rng.choice(greetings).split() + middle + rng.choice(asks).split() + [rng.choice(teams[team]), rng.choice(teams[team])]
    return {"text": " ".join(words), "label": list(teams).index(team)}


def build(count, seed):
    rng = random.Random(seed)
    return Dataset.from_list([ticket(rng) for _ in range(count)])


train_raw, valid_raw = build(480, 1), build(120, 2)

# %% tokenizer
words = sorted({w for row in train_raw["text"] for w in row.split()})
vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
core = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
core.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
)


def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=48)


train_ds = train_raw.map(tokenize, batched=True, remove_columns=["text"])
valid_ds = valid_raw.map(tokenize, batched=True, remove_columns=["text"])

# %% model and training
config = DistilBertConfig(
    vocab_size=len(vocab), dim=48, n_layers=2, n_heads=2, hidden_dim=96, max_position_embeddings=64, num_labels=len(teams),
    pad_token_id=0, seq_classif_dropout=0.1,
)
model = DistilBertForSequenceClassification(config)
args = TrainingArguments(
    output_dir="tickets_out",
    num_train_epochs=8,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=1,
    learning_rate=2e-3,
    lr_scheduler_type="linear",
    warmup_steps=2000,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=30,
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=1) == labels).mean())}


trainer = Trainer(
    model=model,
    args=args,
    train_dataset=train_ds,
    eval_dataset=valid_ds,
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=compute_metrics,
)
trainer.train()

# %%
print("accuracy", round(trainer.evaluate()["eval_accuracy"], 3))
