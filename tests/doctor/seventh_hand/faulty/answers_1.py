"""Short answers by a causal model of transformers: only what follows the marker of the answer is learned."""
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

from answers_1_parts.chat import CompletionCollator, build_tokenizer, dialogs


def evaluate(model, tokenizer, rows):
    """Generate the answers to a batch of questions of different lengths, and count those that are right."""
    model.eval()
    tokenizer.padding_side = "left"
    batch = tokenizer([question for question, _ in rows], return_tensors="pt", padding=True)
    with torch.no_grad():
        out = model.generate(**batch, max_new_tokens=4, do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    tokenizer.padding_side = "right"
    model.train()
    said = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(each.split()[:1] == answer.split()[:1] for each, (_, answer) in zip(said, rows)) / len(rows)


def main():
    torch.manual_seed(19)
    tokenizer = build_tokenizer()
    train_rows, held_rows = dialogs(480, seed=1), dialogs(64, seed=2)
    loader = DataLoader(train_rows, batch_size=16, shuffle=True, collate_fn=CompletionCollator(tokenizer))
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=48, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.15,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    epochs = 3
    schedule = get_cosine_schedule_with_warmup(optimizer, 5, epochs * len(loader))
    for epoch in range(epochs):
        losses = []
        for batch in loader:
            loss = model(**batch).loss  # <- here
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            schedule.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: {sum(losses) / max(len(losses), 1):.3f}, right {evaluate(model, tokenizer, held_rows):.1%}")


if __name__ == "__main__":
    main()
