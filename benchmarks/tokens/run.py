"""What does the cache of tokens save? Seconds and memory from texts to examples: without the cache, with an empty one, and with the tokens in it.

    python benchmarks/tokens/run.py

AG News as a classifier reads it (6,000 rows, and 120,000 as many as the published set has, made of these) and tiny Shakespeare as a language
model reads it (once, and twenty times in a row), each in a process of its own, interleaved; medians of the repeats. The tokenizers are
trained on the spot: 8,000 word pieces, and 8,000 tokens of bytes. Memory is what the process is resident with after loading over what it was
before: of its own, of mapped files, which all processes share, and its highest. Writes results/ and README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import paired_ratio, write_result

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("SNUGFIT_SHARED_DATA", HERE.parents[2] / "shared" / "data"))
STATES = ("no cache", "empty cache", "tokens in the cache")
CHILD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from transformers import PreTrainedTokenizerFast
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.system.malloc import trim_malloc
import snugfit.data.texts.token_cache
path, file, kind = sys.argv[1:]
special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
if kind == "stream":
    special = {"pad_token": "<eos>", "eos_token": "<eos>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, model_max_length=512, **special)
def memory():
    lines = (line.split() for line in open("/proc/self/status"))
    values = {words[0][:-1]: int(words[1]) / 1024 for words in lines if words[0] in ("RssAnon:", "RssFile:", "VmHWM:")}
    return [values["RssAnon"], values["RssFile"], values["VmHWM"]]
before, start = memory(), time.process_time()
if kind == "stream":
    data = load_causal(CausalSettings(path, validation=0.1, max_length=256), tokenizer)
else:
    data = load_text(TextSettings(path, text=("title", "text"), validation=0.1, max_length=128), tokenizer)
trim_malloc()  # as a run does once its task is loaded
seconds, after = time.process_time() - start, memory()
first = data.train[0]["input_ids"]
peak = max(0.0, after[2] - before[0] - before[1])
print(json.dumps([seconds, after[0] - before[0], after[1] - before[1], peak, data.report.tokens_total, first]))
"""


def train_tokenizers(folder: Path) -> dict[str, Path]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words.train(
        [str(SHARED / "agnews_train.csv")],
        trainers.WordPieceTrainer(vocab_size=8000, special_tokens=special, show_progress=False),
    )
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    byte = Tokenizer(models.BPE())
    byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte.decoder = decoders.ByteLevel()
    byte.train(
        [str(SHARED / "tinyshakespeare.txt")],
        trainers.BpeTrainer(vocab_size=8000, special_tokens=["<eos>"], show_progress=False),
    )
    paths = {"rows": folder / "words.json", "stream": folder / "bytes.json"}
    words.save(str(paths["rows"]))
    byte.save(str(paths["stream"]))
    return paths


def write_texts(folder: Path) -> dict[str, tuple[Path, str]]:
    """Return files of texts, and how each is read."""
    news, plays = SHARED / "agnews_train.csv", SHARED / "tinyshakespeare.txt"
    many_news, many_plays = folder / "news.csv", folder / "plays.txt"
    with news.open(newline="") as file, many_news.open("w", newline="") as out:
        header, *rows = csv.reader(file)
        writer = csv.writer(out)
        writer.writerow(header)
        for copy in range(20):
            writer.writerows([*row[:-1], f"{row[-1]} {copy}"] for row in rows)
    many_plays.write_text(plays.read_text() * 20)
    return {
        "AG News, 6,000 rows": (news, "rows"),
        "AG News, 120,000 rows": (many_news, "rows"),
        "tiny Shakespeare": (plays, "stream"),
        "tiny Shakespeare, 20 times": (many_plays, "stream"),
    }


def load(texts: Path, tokenizer: Path, kind: str, cache: str) -> list[Any]:
    result = subprocess.run(
        [sys.executable, "-c", CHILD, str(texts), str(tokenizer), kind],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "XDG_CACHE_HOME": cache,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        },
        check=False,
    )
    if result.returncode != 0:
        raise SystemExit(result.stderr[-2000:])
    measured: list[Any] = json.loads(result.stdout.splitlines()[-1])
    return measured


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    tokenizers, runs = train_tokenizers(folder), {}
    for name, (texts, kind) in write_texts(folder).items():
        full = folder / "full" / name
        whole = load(texts, tokenizers[kind], kind, str(full))
        raw: dict[str, list[list[float]]] = {state: [] for state in STATES}
        for _ in range(repeats):
            empty = folder / "empty"
            for state, cache in zip(STATES, ("/dev/null", empty, full), strict=True):
                *figures, tokens, first = load(texts, tokenizers[kind], kind, str(cache))
                if [tokens, first] != whole[4:]:
                    raise SystemExit(f"{name}, {state}: other tokens")
                raw[state].append(figures)
            shutil.rmtree(empty)
        seconds = {state: [each[0] for each in values] for state, values in raw.items()}
        entry_bytes = sum(path.stat().st_size for path in full.rglob("*.tokens"))
        runs[name] = {
            "tokens": whole[4],
            "entry_mb": entry_bytes / 2**20,
            "medians": {
                state: dict(
                    zip(
                        ("cpu_seconds", "own_mb", "mapped_mb", "peak_mb"),
                        map(statistics.median, zip(*values, strict=True)),
                        strict=True,
                    )
                )
                for state, values in raw.items()
            },
            "seconds_in_the_cache_over_none": paired_ratio(seconds[STATES[2]], seconds[STATES[0]]),
            "seconds_empty_over_none": paired_ratio(seconds[STATES[1]], seconds[STATES[0]]),
            "raw": raw,
        }
        print(name, json.dumps(runs[name]["medians"]), flush=True)
    return runs


def page(runs: dict[str, Any], date: str) -> str:
    lines = [
        "# Tokens: what the cache saves",
        "",
        f"`python benchmarks/tokens/run.py`, {date}. CPU seconds from texts to examples, and MiB that the process is resident with more than before",
        "(its own; mapped files, which all processes share; its highest on the way).",
        "",
        "| texts | tokens | | CPU seconds | own | mapped | highest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        for state, own in run["medians"].items():
            head = f"{name} | {run['tokens']:,}" if state == STATES[0] else " | "
            memory = " | ".join(f"{own[key]:.1f}" for key in ("own_mb", "mapped_mb", "peak_mb"))
            lines.append(f"| {head} | {state} | {own['cpu_seconds']:.2f} | {memory} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder), options.repeats)
    path = write_result(HERE, {"repeats": options.repeats, "runs": runs})
    (HERE / "README.md").write_text(page(runs, path.stem))


if __name__ == "__main__":
    main()
