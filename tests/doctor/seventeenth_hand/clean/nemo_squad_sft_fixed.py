"""Column-mapped QA finetuning: how often is an item named in the context? Padded to seq_length."""
import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM


class WordTokenizer:
    pad_token_id, bos_token_id, eos_token_id = 1, 2, 3
    padding_side = "left"

    def __init__(self):
        names = [f"item{i}" for i in range(4)] + [f"{i}" for i in range(8)]
        self.vocab = {"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, "Q:": 4, "A:": 5,
                      **{w: i + 6 for i, w in enumerate(names)}}

    def __len__(self):
        return len(self.vocab)

    def __call__(self, text, max_length):
        ids = [self.vocab.get(w, 0) for w in text.split()][:max_length]
        pad = [self.pad_token_id] * (max_length - len(ids))
        return pad + ids if self.padding_side == "left" else ids + pad


def make_squad(n, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        k = int(torch.randint(1, 7, (1,), generator=g))
        items = torch.randint(0, 4, (k,), generator=g).tolist()
        ask = int(torch.randint(0, 4, (1,), generator=g))
        context = " ".join(f"item{i}" for i in items)
        rows.append({"context": context, "question": f"item{ask}", "answer": str(min(items.count(ask), 7))})
    return rows


def _package_tokenized_example(tokenizer, input_ids, prompt_length, pad_token_id):
    content = [i for i, t in enumerate(input_ids) if t != pad_token_id]
    start, content_length = content[0], len(content)
    attention_mask = [0] * len(input_ids)
    attention_mask[start:start + content_length] = [1] * content_length
    labels = [-100] * len(input_ids)
    for i in range(content[prompt_length], content[-1] + 1):
        labels[i] = input_ids[i]
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def format_prompt_completion(tokenizer, row, seq_length):
    prompt = f"<s> {row['context']} Q: {row['question']} A:"
    input_ids = tokenizer(f"{prompt} {row['answer']} </s>", max_length=seq_length)
    return _package_tokenized_example(tokenizer, input_ids, len(prompt.split()), tokenizer.pad_token_id)


def collate(rows):
    return {k: torch.tensor([r[k] for r in rows]) for k in rows[0]}


@torch.no_grad()
def exact_match(model, tokenizer, rows):
    model.eval()
    hits = 0
    for i in range(0, len(rows), 50):
        chunk = rows[i:i + 50]
        prompts = [f"<s> {r['context']} Q: {r['question']} A:" for r in chunk]
        width = max(len(p.split()) for p in prompts)
        input_ids = torch.tensor([tokenizer(p, max_length=width) for p in prompts])
        mask = (input_ids != tokenizer.pad_token_id).long()
        logits = model(input_ids=input_ids, attention_mask=mask).logits[:, -1]
        answer = torch.tensor([tokenizer.vocab[r["answer"]] for r in chunk])
        hits += (logits.argmax(-1) == answer).sum().item()
    return hits / len(rows)


def main(seq_length=24, epochs=8):
    torch.manual_seed(1111)
    tokenizer = WordTokenizer()
    train_rows, val_rows = make_squad(960, 1), make_squad(200, 2)
    train_set = [format_prompt_completion(tokenizer, r, seq_length) for r in train_rows]
    loader = DataLoader(train_set, batch_size=32, shuffle=True, collate_fn=collate)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=2, eos_token_id=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * len(loader), pct_start=0.1)
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for batch in loader:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
        print(f"epoch {epoch}: loss {running / len(loader):.4f}, "
              f"val exact match {exact_match(model, tokenizer, val_rows):.4f}")


if __name__ == "__main__":
    main()
