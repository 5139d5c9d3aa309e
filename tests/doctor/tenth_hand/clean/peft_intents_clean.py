"""LoRA on a small BERT: the base learns topics, is saved, and is then adapted to intents."""
import tempfile

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

VOCAB, LENGTH, TOPICS, INTENTS = 200, 16, 6, 3


def draw(count, seed, intents):
    """Words of a topic among others. An intent spans two topics, half of its words are of a dialect of their own."""
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(100, VOCAB, (count, LENGTH), generator=gen)
    topic = torch.randint(0, TOPICS, (count,), generator=gen)
    for place in range(1, 7):
        word = topic * 8 + torch.randint(0, 8, (count,), generator=gen)
        tokens[:, place] = (51 if intents and place > 2 else 3) + word
    tokens[:, 0] = 2
    return TensorDataset(tokens, topic // 2 if intents else topic)


def accuracy(model, loader):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        right = sum((model(input_ids=x).logits.argmax(-1) == y).sum().item() for x, y in loader)
    model.train(was_training)
    return right / len(loader.dataset)


def pretrain(folder):
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=32, num_labels=TOPICS,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(draw(800, 1, intents=False), batch_size=32, shuffle=True)
    for _ in range(2):
        for x, y in loader:
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"topics: loss {loss.item():.3f}, held out {accuracy(model, DataLoader(draw(128, 5, intents=False), 64)):.3f}")
    model.save_pretrained(folder)


def main():
    torch.manual_seed(88)
    with tempfile.TemporaryDirectory() as folder:
        pretrain(folder)
        base = BertForSequenceClassification.from_pretrained(folder, num_labels=INTENTS, ignore_mismatched_sizes=True)
    lora = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=8,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["query", "value", "dense"],
        exclude_modules=["bert.pooler.dense"],
    )
    model = get_peft_model(base, lora)
    model.print_trainable_parameters()

    train_loader = DataLoader(draw(640, 2, intents=True), batch_size=32, shuffle=True)
    val_loader = DataLoader(draw(160, 3, intents=True), batch_size=80)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-3)

    with model.disable_adapter():
        print(f"without adapter {accuracy(model, val_loader):.3f}")

    for epoch in range(2):
        model.train()
        for x, y in train_loader:
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} accuracy {accuracy(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
