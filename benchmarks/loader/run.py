"""Does the loader keep up? Examples a second of the loader alone, of torch's DataLoader on the same rows, and of the training that they are for.

    python benchmarks/loader/run.py [CASE ...]

Shipped recipes on rows that are drawn or come with the standard library, each with a small model that begins from scratch, so that training is
as fast as it is here. One thread. The loader gives windows without a worker, with one and with two; `DataLoader` gets the same data set, collate
function, batch size and workers. The limit of one core is what reading the examples one after the other and putting them into batches takes,
with nothing around it. What this process does alone is counted in its seconds of processor, so that other work on the machine hardly shows; workers
are timed by the clock, on an idle machine. Of each, the fastest of repeats that take turns.

Each recipe takes about a minute, and is written to results/DATE.json and README.md as soon as it is measured: ended in the middle, the same command
goes on with the recipes that lack. Those that are named are measured in any case.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
from common import Rows

HERE, EXAMPLES = Path(__file__).parent, Path(__file__).parents[2] / "examples"
WORKERS = (0, 1, 2)
REQUIRED, NEAR = 5.0, 0.8
"""Times the examples that training takes, or this part of the limit of one core for each core that loads."""
Overrides = list[str]


def texts() -> Iterator[tuple[str, str]]:
    """Yield docstrings of the standard library, each with the side that its module is on."""
    import ast

    from library_texts import functions

    for side, node in itertools.islice(functions(), 12_000):
        if text := ast.get_docstring(node):
            yield " ".join(text.split()), side


def token_model(folder: Path, kind: str) -> Path:
    from snugfit.models.small import write_small_model

    write_small_model(folder / "model", [text for text, _ in texts()], kind=kind)
    return folder / "model"


def rows_of(folder: Path, rows: Iterator[dict[str, Any]], kind: str) -> Overrides:
    """Write rows and a model of tokens, and return the settings that name them."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = token_model(folder, kind)
    return [f"data.train={folder / 'rows.jsonl'}", f"model={model}", "from_scratch=true"]


def text_classification(folder: Path) -> Overrides:
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *texts()])
    return [
        f"data.train={folder / 'rows.csv'}",
        f"model={token_model(folder, 'encoder')}",
        "from_scratch=true",
    ]


def text_classification_lora(folder: Path) -> Overrides:
    return text_classification(folder)


def text_regression(folder: Path) -> Overrides:
    return rows_of(folder, ({"text": text, "label": len(text) / 7} for text, _ in texts()), "encoder")


def multi_label_classification(folder: Path) -> Overrides:
    words = ("return", "file", "name", "string", "list")
    rows = ({"text": text, "labels": [word for word in words if word in text]} for text, _ in texts())
    return rows_of(folder, rows, "encoder")


def token_classification(folder: Path) -> Overrides:
    split = (text.split() for text, _ in texts())
    rows = (
        {"words": words, "tags": ["B-NAME" if word[0].isupper() else "O" for word in words]}
        for words in split
    )
    return rows_of(folder, rows, "encoder")


def sentence_embedding(folder: Path) -> Overrides:
    halves = ((text[: len(text) // 2], text[len(text) // 2 :]) for text, _ in texts() if len(text) > 40)
    rows = ({"anchor": anchor, "positive": positive} for anchor, positive in halves)
    return [*rows_of(folder, rows, "encoder"), "plan.micro_batch=32"]


def seq2seq(folder: Path) -> Overrides:
    rows = ({"source": text, "target": " ".join(text.split()[:12])} for text, _ in texts())
    return rows_of(folder, rows, "encoder-decoder")


def with_weights(folder: Path) -> Overrides:
    """Write weights drawn at random, which a base in 4 bits is made of."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto import AutoConfig

    place = token_model(folder, "decoder")
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place)).save_pretrained(place)
    return [f"model={place}", f"data.train={folder / 'rows.jsonl'}", "from_scratch=false"]


def instruct_qlora(folder: Path) -> Overrides:
    """Write texts, of which a few are longer than the recipe reads, as prompts."""
    rows = ({"prompt": text, "completion": f"It is {side}."} for text, side in texts())
    rows_of(folder, rows, "decoder")
    return [*with_weights(folder), "data.bad_rows=skip"]


def preference_dpo(folder: Path) -> Overrides:
    rows = ({"prompt": text, "chosen": "Yes, it is.", "rejected": "No."} for text, _ in texts())
    rows_of(folder, itertools.islice(rows, 600), "decoder")
    return [*with_weights(folder), "data.bad_rows=skip"]


def masked_lm(folder: Path) -> Overrides:
    return rows_of(folder, ({"text": text} for text, _ in texts()), "encoder")


def code_lm(folder: Path) -> Overrides:
    prepare = [sys.executable, str(EXAMPLES / "code_lm" / "prepare.py"), str(folder / "code")]
    subprocess.run([*prepare, "--width", "256", "--layers", "4", "--modules", "60"], check=True)
    return [f"data.train={folder / 'code' / 'source.jsonl'}", f"model={folder / 'code'}"]


def causal_lm(folder: Path) -> Overrides:
    (folder / "corpus.txt").write_text("\n\n".join(text for text, _ in texts()))
    return [f"data.train={folder / 'corpus.txt'}", f"model={token_model(folder, 'decoder')}"]


def pictures(folder: Path, side: int = 224, *, masks: bool = False) -> None:
    """Write 400 JPEGs of discs on a noisy ground in two classes, or with masks."""
    import numpy as np
    from PIL import Image, ImageDraw

    drawn = np.random.default_rng(0)
    for number in range(400):
        picture = Image.fromarray(drawn.integers(0, 90, (side // 8, side // 8, 3)).astype(np.uint8))
        picture, mask = picture.resize((side, side)), Image.new("L", (side, side))
        left, top = drawn.integers(0, side // 2, 2)
        box = [(int(left), int(top)), (int(left) + side // 2, int(top) + side // 2)]
        ImageDraw.Draw(picture).ellipse(box, fill=((200, 40, 40), (40, 200, 40))[number % 2])
        ImageDraw.Draw(mask).ellipse(box, fill=1)
        place = folder / "images" if masks else folder / "photos" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{number}.jpg", quality=90)
        if masks:
            (folder / "masks").mkdir(exist_ok=True)
            mask.save(folder / f"masks/{number}.png")


def picture_model(folder: Path) -> str:
    from snugfit.models.small import write_small_picture_model

    write_small_picture_model(folder / "model")
    return f"model=config:{folder / 'model'}"


def image_classification(folder: Path) -> Overrides:
    pictures(folder)
    return [f"data.train={folder / 'photos'}", picture_model(folder)]


def vit(folder: Path) -> str:
    from snugfit.models.small import write_small_picture_model

    write_small_picture_model(folder / "model", patches=True)
    return f"model={folder / 'model'}"


def image_from_scratch(folder: Path) -> Overrides:
    pictures(folder)
    return [f"data.train={folder / 'photos'}", vit(folder)]


def masked_pictures(folder: Path) -> Overrides:
    pictures(folder)
    return [f"data.train={folder / 'photos'}", vit(folder)]


def multi_label_image_classification(folder: Path) -> Overrides:
    pictures(folder)
    lines = [
        f"photos/{'ab'[number % 2]}/{number}.jpg,{('red', 'green;odd')[number % 2]}" for number in range(400)
    ]
    (folder / "photos.csv").write_text("\n".join(["image,labels", *lines]))
    return [f"data.train={folder / 'photos.csv'}", picture_model(folder)]


def image_shards(folder: Path) -> Overrides:
    subprocess.run([sys.executable, EXAMPLES / "draw_shards.py", folder / "shapes"], check=True)
    return [f"data.train={folder / 'shapes'}", picture_model(folder).replace("config:", "")]


def contrastive_pretraining(folder: Path) -> Overrides:
    pictures(folder)
    return [f"data.train={folder / 'photos'}", picture_model(folder), "plan.micro_batch=32"]


def segmentation(folder: Path) -> Overrides:
    pictures(folder, masks=True)
    return [f"data.train={folder}"]


def audio_classification(folder: Path) -> Overrides:
    from snugfit.models.small import write_small_sound_model

    subprocess.run([sys.executable, EXAMPLES / "draw_sounds.py", folder / "sounds"], check=True)
    write_small_sound_model(folder / "model", 1.5)
    return [f"data.train={folder / 'sounds'}", f"model={folder / 'model'}"]


def tabular_classification(folder: Path) -> Overrides:
    from sklearn.datasets import load_digits

    digits = load_digits()
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"pixel{number}" for number in range(64)), "label"])
        writer.writerows(
            [*row, f"digit {label}"] for row, label in zip(digits.data, digits.target, strict=True)
        )
    return [f"data.train={folder / 'rows.csv'}"]


def tabular_regression(folder: Path) -> Overrides:
    from sklearn.datasets import load_diabetes

    rows = load_diabetes(as_frame=True).frame.rename(columns={"target": "label"})
    rows.to_csv(folder / "rows.csv", index=False)
    return [f"data.train={folder / 'rows.csv'}"]


def forecasting(folder: Path) -> Overrides:
    lines = [
        f"{shop},{at},{at % 7 + 10 * shop + (at * 31 + shop) % 5}" for shop in range(40) for at in range(300)
    ]
    (folder / "rows.csv").write_text("\n".join(["shop,time,label", *lines]) + "\n")
    return [f"data.train={folder / 'rows.csv'}", "data.series=shop"]


CASES: dict[str, Callable[[Path], Overrides]] = {
    each.__name__: each
    for each in (
        *(tabular_classification, tabular_regression, forecasting),
        *(text_classification, text_classification_lora, text_regression, multi_label_classification),
        *(token_classification, sentence_embedding, seq2seq, masked_lm, causal_lm, code_lm),
        *(instruct_qlora, preference_dpo),
        *(image_classification, image_from_scratch, multi_label_image_classification, image_shards),
        *(masked_pictures, contrastive_pretraining, segmentation, audio_classification),
    )
}


def rate_of(batches: Iterator[Any], rows: int, seconds: float, workers: int = 0) -> float:
    """Return examples a second of an iterator of batches of so many, after the first, for about so long."""
    clock = time.perf_counter if workers else time.process_time
    next(batches)
    start, count = clock(), 0
    for _ in batches:
        count += rows
        if clock() - start > seconds:
            break
    return count / (clock() - start)


def ours(setup: Any, workers: int, seconds: float, rows: int) -> float:
    from dataclasses import replace

    loader = replace(setup, plan=replace(setup.plan, num_workers=workers)).loader()
    with contextlib.closing(loader.windows(0, setup.windows)) as windows:
        return rate_of(windows, rows, seconds, workers)


def of_torch(setup: Any, workers: int, seconds: float, rows: int) -> float:
    from torch.utils.data import DataLoader

    material = setup.material
    loader = DataLoader(
        material.train, rows, shuffle=True, collate_fn=material.collate, num_workers=workers, drop_last=True,
        persistent_workers=workers > 0,
    )  # fmt: skip
    return rate_of(itertools.chain.from_iterable(itertools.repeat(loader)), rows, seconds, workers)


def one_core(setup: Any, seconds: float, rows: int) -> float:
    from torch.utils.data import default_collate

    material = setup.material
    collate, places = material.collate or default_collate, itertools.cycle(range(len(material.train)))
    batches = (collate([material.train[next(places)] for _ in range(rows)]) for _ in itertools.repeat(None))
    return rate_of(batches, rows, seconds)


def training(setup: Any, seconds: float, rows: int) -> float:
    """Return examples a second of updates on a few windows that are there already."""
    step = setup.step()
    with contextlib.closing(setup.loader().windows(0, 4)) as windows:
        there = list(windows)
    return rate_of((step(window) for window in itertools.cycle(there)), rows, seconds)


def measure(name: str, repeats: int, seconds: float) -> dict[str, Any]:
    import torch

    from snugfit.recipe import load_recipe
    from snugfit.tools.setup import recipe_setup

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        fixed = ["plan.device=cpu", "plan.numerics=fp32", "track.mlflow=false", "train.epochs=1000"]
        overrides = ["plan.micro_batch=null", *CASES[name](Path(place)), *fixed, "early_stopping=null"]
        recipe = load_recipe(EXAMPLES / f"{name}.yaml", overrides)
        setup, _ = recipe_setup(recipe)
        rows = setup.job.train.global_batch
        raw: dict[str, list[float]] = {}
        for _ in range(repeats):
            taken = {"one core": one_core(setup, seconds, rows), "training": training(setup, seconds, rows)}
            for workers in WORKERS:
                taken[f"ours {workers}"] = ours(setup, workers, seconds, rows)
                taken[f"torch {workers}"] = of_torch(setup, workers, seconds, rows)
            for key, value in taken.items():
                raw.setdefault(key, []).append(value)
    best = {key: max(values) for key, values in raw.items()}
    cores = min(max(WORKERS), os.cpu_count() or 1)
    return {
        "rows": rows,
        "examples_per_second": best,
        "loader_over_training": {str(each): best[f"ours {each}"] / best["training"] for each in WORKERS},
        "of_the_limit": {
            str(each): best[f"ours {each}"] / (best["one core"] * min(max(1, each), cores))
            for each in WORKERS
        },
        "raw": raw,
    }


def verdict(run: dict[str, Any]) -> str:
    """Return what a case shows: with as many workers as it takes, the loader keeps up, or gives nearly what its cores can."""
    for workers, over in run["loader_over_training"].items():
        if over >= REQUIRED:
            return f"{over:.0f} times training, {workers} workers"
    near = max(run["of_the_limit"].items(), key=lambda each: each[1])
    words = f"{near[1]:.0%} of the limit with {near[0]} workers"
    return words if near[1] >= NEAR else f"too slow: {words}"


def page(runs: dict[str, Any], missing: Sequence[str]) -> str:
    dates = sorted({run["date"] for run in runs.values()})
    lines = [
        "# Does the loader keep up?",
        "",
        f"`python benchmarks/loader/run.py`, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. Examples a second of shipped recipes, of which the fastest of repeats that take turns;",
        "models are small ones that begin from scratch, so that training is as fast as it is here. One thread; seconds of processor without workers, of the clock with them.",
        "",
        "| recipe | training | one core | the loader: 0, 1, 2 workers | torch's `DataLoader`: 0, 1, 2 | |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        best = run["examples_per_second"]
        both = [" / ".join(f"{best[f'{who} {each}']:,.0f}" for each in WORKERS) for who in ("ours", "torch")]
        lines.append(
            f"| {name} | {best['training']:,.0f} | {best['one core']:,.0f} | {both[0]} | {both[1]} | {verdict(run)} |"
        )
    busy = [name for name, run in runs.items() if _busy(run["machine"])]
    if busy:
        lines += [
            "",
            f"Other work kept the machine busy where {', '.join(busy)} were measured: their figures with workers are of the part of it that was left.",
        ]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _busy(described: dict[str, Any]) -> bool:
    """Return whether more ran than the processes of a case itself, two workers and one that trains."""
    load = described["load"]
    return load is not None and load > described["cores"] + 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
    os.environ.update({**one, "TOKENIZERS_PARALLELISM": "false"})  # before torch and transformers read them
    if unknown := {*options.cases} - {*CASES}:
        raise SystemExit(f"no case {min(unknown)}: choose from {', '.join(CASES)}")
    rows = Rows(HERE, list(CASES), {"repeats": options.repeats, "seconds": options.seconds})
    for name in options.cases or rows.missing or CASES:
        run = measure(name, options.repeats, options.seconds)
        rows.add(name, run)
        (HERE / "README.md").write_text(page(rows.runs, rows.missing))
        print(name, verdict(run), json.dumps(run["examples_per_second"]), flush=True)


if __name__ == "__main__":
    main()
