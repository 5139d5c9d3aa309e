"""A 7B-shaped QLoRA at sequence 2,048 under a cap of 16 GiB: does it train, in how much, how fast?"""

from __future__ import annotations

from shapes import DEVICE, Result, cap, llama, measure, window

from snugfit import Step
from snugfit.techniques import find


def main() -> None:
    result = Result()
    shape, tokens, rows = ("toy", 32, 4) if result.toy else ("7b", 2048, 4)
    cap(16)
    techniques = [
        find("lora")(rank=16, alpha=32.0),
        find("recompute")(),
        find("chunked_loss")(),
        *([find("bf16")()] if DEVICE.type == "cuda" else []),
    ]
    step = Step(
        llama(shape, tokens).to(DEVICE),
        find("adamw")(learning_rate=2e-4),
        "causal_lm",
        techniques,
        micro_batch=rows // 2,
        nominal=float(rows * tokens),
    )
    data = window(shape, rows, tokens)
    losses: list[float] = []

    def update() -> float:
        done = step(data)
        assert done.applied
        losses.append(done.loss)
        return done.loss

    result["qlora"] = measure(update, rows * tokens, repeats=5)
    result["it_learns"] = losses[-1] < losses[0]


if __name__ == "__main__":
    main()
