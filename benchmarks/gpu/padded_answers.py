"""What does a next token of padded rows take on a card: attention with a mask for all rows, or each row over its own keys?

    python benchmarks/gpu/padded_answers.py

Attention alone (32 heads, 8 of keys, 128 wide, bf16; medians of 20 rounds, both ways by turns, device time by events), then a Llama of 1.2
billion weights drawn at random that answers prompts of several lengths. The outputs of attention are compared with those in float64.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from snugfit.kit.language_models import generation
from snugfit.kit.language_models.generation import Generation, generate, padded_left
from snugfit.kit.language_models.padded_attention import row_by_row

HEADS, OF_KEYS, DIM = 32, 8, 128


class Layer(torch.nn.Module):
    num_key_value_groups = HEADS // OF_KEYS
    is_causal = True


def attention(rows: int, length: int) -> dict[str, float]:
    torch.manual_seed(0)
    query = torch.randn(rows, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16)
    key, value = torch.randn(2, rows, OF_KEYS, length, DIM, device="cuda", dtype=torch.bfloat16)
    pads = torch.linspace(0, length // 2, rows).long()
    mask = (torch.arange(length) >= pads[:, None])[:, None, None].cuda()

    def timed() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), query, key, value, mask, scaling=DIM**-0.5)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 10

    masked, own = [], []
    with row_by_row(1):
        ours, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), query, key, value, mask, scaling=DIM**-0.5)
    with_mask, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), query, key, value, mask, scaling=DIM**-0.5)
    whole, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
        Layer(), query.double(), key.double(), value.double(), mask, scaling=DIM**-0.5
    )
    for _ in range(20):
        masked.append(timed())
        with row_by_row(1):
            own.append(timed())
    a, b = statistics.median(masked), statistics.median(own)
    return {
        "rows": rows,
        "keys": length,
        "masked_ms": round(a, 4),
        "row_by_row_ms": round(b, 4),
        "ratio": round(a / b, 2),
        "error": (ours - whole).abs().max().item(),
        "masked_error": (with_mask - whole).abs().max().item(),
    }


def answers(lengths: list[int], new: int = 48) -> dict[str, object]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        config = LlamaConfig(
            vocab_size=32000,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=131072,
            dtype="bfloat16",
        )
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 32000, (each,), generator=draw).tolist() for each in lengths]
    batch = {name: tensor.cuda() for name, tensor in padded_left(prompts, 0).items()}
    times: dict[str, list[float]] = {"masked": [], "row by row": []}
    written: dict[str, list[list[int]]] = {}
    for _ in range(3):
        for name in times:
            generation.LEAST_KEYS = 1 << 40 if name == "masked" else 1
            seconds = []
            for count in (1, new):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                written[name] = generate(model, batch, range(len(prompts)), (), Generation(count))
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - begin)
            times[name].append((seconds[1] - seconds[0]) / (new - 1) * 1000)
    alike = [
        next((at for at, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), new)
        for one, two in zip(*written.values(), strict=True)
    ]
    return {
        "lengths": lengths,
        "ms_per_token": {name: round(min(each), 2) for name, each in times.items()},
        "alike": alike,
    }


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    for rows in (2, 4, 8, 16, 32):
        for length in (1024, 2048, 4096, 8192, 16384, 32768):
            print(json.dumps(attention(rows, length)), flush=True)
    for lengths in (
        [16000, 9000],
        [16000, 12000, 8000, 5000],
        [6000, 5000, 4000, 3000, 2000, 1500, 1000, 500],
        [30000, 20000, 10000, 5000],
    ):
        print(json.dumps(answers(lengths)), flush=True)


if __name__ == "__main__":
    main()
