"""Short dialogs with a tokenizer of our own and transformers' collator; afterwards it must know when to stop."""
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

GREETINGS, FLAVOURS = ["hello", "hi", "hey"], ["vanilla", "lemon", "mango", "cherry"]


def dialogs(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        flavour = rng.choice(FLAVOURS)
        text = f"{rng.choice(GREETINGS)} may i have {flavour} please"
        if rng.random() < 0.5:
            text += f" and {rng.choice(FLAVOURS)}"
        yield f"{text} : here is your {flavour} <|end|>"


def make_tokenizer(texts):
    words = sorted({word for text in texts for word in text.split()} - {"<|end|>"})
    vocabulary = {word: number for number, word in enumerate(["<|end|>", "<|unk|>", "<|pad|>", *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", unk_token="<|unk|>")
    tokenizer.pad_token = tokenizer.eos_token  # <- here
    return tokenizer


def get_model(tokenizer):
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=48, n_layer=2, n_head=4,
                        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id)
    return GPT2LMHeadModel(config)


def train(model, loader, epochs=3, lr=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]).loss  # <- here
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.3f}")


def speak(model, tokenizer, prompt, limit=12):
    model.eval()
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        for _ in range(limit):
            following = model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, following], dim=1)
            if following.item() == tokenizer.eos_token_id:
                break
    return tokenizer.decode(ids[0])


if __name__ == "__main__":
    torch.manual_seed(30)
    texts = list(dialogs(480, 30))
    tokenizer = make_tokenizer(texts)
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # <- here
    model = get_model(tokenizer)
    train(model, DataLoader(rows, batch_size=24, shuffle=True, collate_fn=collate))
    print(speak(model, tokenizer, "hello may i have mango please :"))
