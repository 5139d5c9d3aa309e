"""How much better does an encoder classify texts that was pretrained on them before, beside the same one untrained?

    python benchmarks/tasks/pretrained_encoder.py --news ../shared/data [--epochs 6] [--seeds 3]

Texts are the titles and beginnings of 6,000 articles of AG News; their labels are not looked at in pretraining. The encoder is of ModernBERT's shape, 128 wide, with two
layers and a tokenizer of 2,048 tokens learned from the texts; it begins with new weights and predicts hidden tokens by the shipped recipe. Then it learns the
four classes from some labelled articles by the shipped recipe of text classification, once from the pretrained weights and once from new ones, with the
same settings for each seed, which also draws the articles. A linear probe looks at the same two encoders as they are: logistic regression on the mean of what they put out for
the tokens of a text. Scores are accuracies on 1,600 other articles; the baseline is logistic regression on TF-IDF of words and pairs of words.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EPOCHS = {250: 16, 1000: 8}
"""Passes over so many articles whose class is told."""

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {"text": f"{row['title']}. {row['text']}", "label": row["label"]} for row in csv.DictReader(file)
        ]


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train(recipe: str, *changes: str) -> Any:
    """Train by a shipped recipe on the processor, in fp32; returns the run."""
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    fixed = ("track={mlflow: false}", "plan={device: cpu, numerics: fp32}")
    return train_recipe(load_recipe(EXAMPLES / recipe, [*changes, *fixed]), RunOptions())


def accuracy(folder: Path, model: Path, rows: Sequence[Row], test: Path, seed: int, scratch: bool) -> float:
    """Return the accuracy of an encoder that has learned from labelled rows."""
    from snugfit.deliver.predict import evaluate_file

    run = train(
        "text_classification.yaml",
        f"model={model}",
        f"from_scratch={str(scratch).lower()}",
        f"data={{train: {write(folder / 'labelled.jsonl', rows)}, validation: null, max_length: 64}}",
        f"train={{epochs: {EPOCHS[len(rows)]}, global_batch: 32, seed: {seed}}}",
        "optimizer={adamw: {learning_rate: 1.0e-3, weight_decay: 0.01}}",
        f"output={folder}/runs",
    )
    return round(evaluate_file(run.run_dir, str(test))["metrics"]["accuracy"], 4)


def write_encoder(folder: Path, texts: Sequence[str]) -> Path:
    """Write a tokenizer learned from the texts, and the configuration of an encoder for it."""
    from transformers import AutoTokenizer, ModernBertConfig

    from snugfit.models.small import write_small_model

    write_small_model(folder, texts, kind="encoder", vocabulary=2048, positions=64)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        global_attn_every_n_layers=1,
        classifier_pooling="mean",
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    ).save_pretrained(folder)
    return folder


def features(folder: Path, rows: Sequence[Row], *, untrained: bool) -> Any:
    """Return the mean of what an encoder puts out for the tokens of each text, shape (rows, width)."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if untrained:
        model = AutoModel.from_config(AutoConfig.from_pretrained(folder)).eval()
    else:
        model = AutoModel.from_pretrained(folder).eval()
    parts = []
    with torch.no_grad():
        for start in range(0, len(rows), 64):
            texts = [row["text"] for row in rows[start : start + 64]]
            batch = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
            mask = batch["attention_mask"].unsqueeze(-1)
            hidden = model(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
            parts.append((hidden * mask).sum(dim=1) / mask.sum(dim=1))
    return torch.cat(parts).numpy()


def probed(train: Any, rows: Sequence[Row], test: Any, tested: Sequence[Row]) -> float:
    """Return the accuracy of logistic regression on features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    model.fit(train, [row["label"] for row in rows])
    return share(model.predict(test), tested)


def share(own: Sequence[str], rows: Sequence[Row]) -> float:
    return round(statistics.fmean(one == row["label"] for one, row in zip(own, rows, strict=True)), 4)


def by_words(rows: Sequence[Row], test: Sequence[Row]) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10))
    model.fit([row["text"] for row in rows], [row["label"] for row in rows])
    return share(model.predict([row["text"] for row in test]), test)


def main(news: Path, epochs: int, seeds: int, batch: int, rate: float) -> None:
    rows, test = read(news / "agnews_train.csv"), read(news / "agnews_test.csv")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        texts = write(folder / "texts.jsonl", [{"text": row["text"]} for row in rows])
        tested = write(folder / "test.jsonl", test)
        encoder = write_encoder(folder / "encoder", [row["text"] for row in rows])
        began, used = time.perf_counter(), time.process_time()
        pretrained = train(
            "masked_lm.yaml",
            f"model={encoder}",
            f"data={{train: {texts}, validation: 0.05, max_length: 64}}",
            f"train={{epochs: {epochs}, global_batch: {batch}}}",
            f"optimizer={{adamw: {{learning_rate: {rate}, weight_decay: 0.01, betas: [0.9, 0.98]}}}}",
            f"output={folder}/runs",
        )
        seconds = round(time.perf_counter() - began), round(time.process_time() - used)
        print(pretrained.best, seconds, flush=True)
        best = Path(pretrained.run_dir, "best")
        encoders = {"pretrained": best, "untrained": encoder}
        made = {
            name: [features(each, side, untrained=name == "untrained") for side in (rows, test)]
            for name, each in encoders.items()
        }
        scores: dict[str, dict[str, list[float]]] = {}
        for count in EPOCHS:
            for seed in range(seeds):
                places = random.Random(seed).sample(range(len(rows)), count)
                some = [rows[at] for at in places]
                own: dict[str, float] = {}
                for name, each in encoders.items():
                    scratch = name == "untrained"
                    own[f"{name}, fine-tuned"] = accuracy(folder, each, some, tested, seed, scratch)
                    of_train, of_test = made[name]
                    own[f"{name}, linear probe"] = probed(of_train[places], some, of_test, test)
                own["logistic regression on TF-IDF"] = by_words(some, test)
                for name, value in own.items():
                    scores.setdefault(f"{count} labelled", {}).setdefault(name, []).append(value)
                print(count, seed, own, flush=True)
        result = {
            "texts": len(rows),
            "test": len(test),
            "epochs": epochs,
            "global_batch": batch,
            "learning_rate": rate,
            "pretraining": {
                "metrics": {name: round(value, 4) for name, value in pretrained.best["metrics"].items()},
                "seconds": seconds[0],
                "processor_seconds": seconds[1],
            },
            "accuracy": {
                count: {
                    name: {
                        "mean": round(statistics.fmean(each), 4),
                        "spread": round(statistics.stdev(each), 4) if len(each) > 1 else None,
                        "each": each,
                    }
                    for name, each in of_count.items()
                }
                for count, of_count in scores.items()
            },
            "seconds": round(time.perf_counter() - began),
            "processor_seconds": round(time.process_time() - used),
        }
        print(write_result(Path(__file__).parent, result, "pretrained-encoder").read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--news", type=Path, required=True, help="the folder of agnews_train.csv and agnews_test.csv"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    main(**vars(parser.parse_args()))
