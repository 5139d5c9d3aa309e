"""Instruction tuning of the model that was trained from scratch, with the right end of turn scored, and with the end of sequence in its place."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import newest_run, snugfit, write_recipe
from dialogue import write_pairs
from shakespeare import END, TURN_END, TURN_START

TEMPLATE = (
    "{% for message in messages %}{{ '"
    + TURN_START
    + "' + message['role'] + '\\n' + message['content'] }}ENDING{{ '\\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '"
    + TURN_START
    + "assistant\\n' }}{% endif %}"
)
"""ChatML, with what ends a turn left open."""

ENDINGS = {
    "right": f"{{{{ '{TURN_END}' }}}}",
    "end of sequence in its place": f"{{{{ '{END}' if message['role'] == 'assistant' else '{TURN_END}' }}}}",
}
"""What ends a turn of the assistant in training. The models are used by the template of the first, as a server has it."""

RIGHT = "right"


@dataclass(frozen=True)
class Size:
    """Rows, and the length of the tuning."""

    train: int = 1500
    held_out: int = 200
    epochs: int = 2
    global_batch: int = 16
    learning_rate: float = 5e-4
    answer: int = 96


FULL = Size()
TINY = Size(train=24, held_out=8, epochs=1, global_batch=8, answer=8)


def tune(base: Path, ending: str, rows: Path, folder: Path, size: Size) -> Path:
    """Tune a copy of the base by conversations that end so, and return the folder of the model, with the right template."""
    folder.mkdir(parents=True, exist_ok=True)
    template = folder / "template.jinja"
    template.write_text(TEMPLATE.replace("ENDING", ENDINGS[ending]))
    recipe = write_recipe(
        folder / "tuning.yaml",
        {
            "name": "tuning",
            "task": "instruction",
            "model": str(base),
            "data": f"{{train: {rows}, validation: null, text: [prompt], completion: completion, max_length: 256, template: {template}}}",
            "train": f"{{epochs: {size.epochs}, global_batch: {size.global_batch}}}",
            "optimizer": f"{{adamw: {{learning_rate: {size.learning_rate}}}}}",
            "schedule": "{linear: {warmup: 0.1}}",
            "techniques": "[{clip_norm: {max_norm: 1.0}}]",
            "plan": f"{{device: cpu, numerics: fp32, micro_batch: {size.global_batch}}}",
            "track": "{mlflow: false}",
            "output": str(folder / "runs"),
        },
    )
    if (run := newest_run(folder / "runs")) is None or not (run / "best").is_dir():
        snugfit("train", str(recipe))
        run = newest_run(folder / "runs")
    assert run is not None
    served = folder / "served"
    shutil.copytree(run / "best", served, dirs_exist_ok=True)
    (served / "chat_template.jinja").write_text(TEMPLATE.replace("ENDING", ENDINGS[RIGHT]))
    return served


def ended(served: Path, rows: Path, size: Size) -> dict[str, float]:
    """Return the share of answers that stop at the end of turn, and the share that stop there or at the end of sequence, by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(served, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(served).eval()
    prompts = [json.loads(line)["prompt"] for line in rows.read_text().splitlines()]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    end, other = tokenizer.convert_tokens_to_ids([TURN_END, END])
    stops = {"at the end of turn": [end], "at that or the end of sequence": [end, other]}
    shares = {}
    for name, tokens in stops.items():
        stopped = 0
        for start in range(0, len(chats), 50):
            inputs = tokenizer.apply_chat_template(
                chats[start : start + 50],
                add_generation_prompt=True,
                padding=True,
                return_dict=True,
                return_tensors="pt",
            )
            with torch.no_grad():
                whole = model.generate(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    max_new_tokens=size.answer,
                    do_sample=False,
                    eos_token_id=tokens,
                    pad_token_id=other,
                )
            answers = whole[:, inputs["input_ids"].shape[1] :]
            stopped += int(torch.isin(answers, torch.tensor(tokens)).any(dim=1).sum())
        shares[name] = stopped / len(chats)
    return shares


def figures(base: Path, train: Path, held_out: Path, folder: Path, size: Size) -> dict[str, Any]:
    """Return for each ending the loss of held-out answers with the right one, and the share of answers that stop."""
    rows = write_pairs(train, folder / "train.jsonl", size.train)
    unseen = write_pairs(held_out, folder / "held_out.jsonl", size.held_out)
    result: dict[str, Any] = {"rows": size.train, "held_out": size.held_out, "longest_answer": size.answer}
    for number, ending in enumerate(ENDINGS):
        served = tune(base, ending, rows, folder / str(number), size)
        scores = snugfit("evaluate", str(served), str(unseen))
        result[ending] = {"loss": scores["metrics"]["loss"], **ended(served, unseen, size)}
        print(ending, result[ending], flush=True)
    return result
