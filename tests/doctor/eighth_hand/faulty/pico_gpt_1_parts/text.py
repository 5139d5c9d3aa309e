import random
import string

import torch


def load_text(count=6000):
    own = random.Random(3)
    names = ["".join(own.choices(string.ascii_lowercase, k=own.randint(3, 6))) for _ in range(60)]
    lines = []
    for _ in range(count // 4):
        a, b, c = own.choices(names, k=3)
        lines.append(own.choice([f"{a} = {b} + {c};", f"if ({a} < {b}) {{ {c}++; }}", f"return {a}({b}, {c});", f"print({a}[{own.randint(0, 9)}]);"]))
    text = "\n".join(lines)
    stoi = {ch: i for i, ch in enumerate(sorted(set(text)))}
    data = torch.tensor([stoi[ch] for ch in text])
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:], len(stoi)


def get_batch(data, batch_size, block_size, generator=None):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,), generator=generator)
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y
