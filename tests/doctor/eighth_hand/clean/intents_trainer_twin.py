import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

PAD, CLS, SEP, VOCAB, LABELS = 0, 1, 2, 120, 5


class IntentDataset(torch.utils.data.Dataset):
    """Sentences of 4 to 18 words; each intent has words of its own."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(count):
            label = int(torch.randint(0, LABELS, (1,), generator=g))
            length = int(torch.randint(4, 19, (1,), generator=g))
            words = torch.randint(3 + 20 * LABELS, VOCAB, (length,), generator=g)
            words[torch.randint(0, length, (2,), generator=g)] = 3 + 20 * label + torch.randint(0, 20, (2,), generator=g)
            self.rows.append({"input_ids": [CLS, *words.tolist(), SEP], "label": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = [f["input_ids"] + [PAD] * (longest - len(f["input_ids"])) for f in features]
    batch = {"input_ids": torch.tensor(ids), "labels": torch.tensor([f["label"] for f in features])}
    batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    return batch


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": float((predictions == labels).mean())}


def main():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=32, num_labels=LABELS, pad_token_id=PAD,
    )
    training_args = TrainingArguments(
        output_dir="results",
        num_train_epochs=3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate=2e-3,
        warmup_steps=15,
        weight_decay=0.01,
        logging_steps=40,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        data_collator=collate,
        train_dataset=IntentDataset(800, 1),
        eval_dataset=IntentDataset(200, 2),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
