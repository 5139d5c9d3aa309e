"""What does it take to tokenise a text that is read as a stream? Processor seconds and the highest memory, beside `datasets.map` and a file whose tokens are kept.

Memory is what the process was resident with, and of that its own, without files that are mapped into it, which the system takes back when it needs room.

    python benchmarks/tokens/stream.py --megabytes 200
    python benchmarks/tokens/stream.py --megabytes 1024 --folder /tmp/tokens --ways data.stream

With `--folder` rows, tokenizer and what was measured stay there, and a call that was stopped goes on behind the last way that it has measured; of a
way it says every minute how far it is. 1,024 MiB take about 7 minutes of one processor a way.

Rows are the standard library's source files in pieces of about 2,000 characters, repeated up to the size; the tokenizer has 8,000 tokens of bytes,
trained on them. Each way in a process of its own, with one thread: `data.stream: 1024`, one pass into blocks of 256 tokens; `data.stream` left out,
the tokens not in the cache; and `datasets.map` in batches of 1,000, its cache on the disk too. Writes results/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import commit, write_result

HERE = Path(__file__).parent
WAYS = ("data.stream", "whole file", "datasets.map")
_PIECE = 2000
_CHILD = """
import json, resource, sys, threading, time
import datasets, pyarrow, torch
from transformers import PreTrainedTokenizerFast
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.streamed_texts import StreamSettings, stream_causal
path, file, way = sys.argv[1:]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, pad_token="<eos>", eos_token="<eos>")
def highest(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def own(): return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024
before, begun, owned, start = highest(), own(), [0.0], time.process_time()
def watch():
    told = time.monotonic()
    while True:
        owned[0] = max(owned[0], own() - begun)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{way}: {time.process_time() - start:.0f} s of processor, {tokens:,} tokens, {owned[0]:.0f} MiB", file=sys.stderr, flush=True)
        time.sleep(0.2)
settings, tokens = CausalSettings(path, validation=None, max_length=256), 0
threading.Thread(target=watch, daemon=True).start()
if way == "data.stream":
    examples = stream_causal(settings, StreamSettings(1024, 10**9, 1), tokenizer).train
    place = 0
    while (position := examples.position(place)) is None or position.epoch == 0:
        tokens += len(examples[place]["input_ids"])
        place += 1
elif way == "whole file":
    tokens = load_causal(settings, tokenizer).report.tokens_total
else:
    table = datasets.load_dataset("json", data_files=path, split="train")
    def encode(batch): return {"input_ids": tokenizer(batch["text"])["input_ids"]}
    tokens = sum(map(len, table.map(encode, batched=True, remove_columns=["text"])["input_ids"][:1000]))
print(json.dumps([time.process_time() - start, highest() - before, owned[0], tokens]))
"""


def write_rows(path: Path, size: int) -> int:
    """Write rows of about so many bytes together, and return how many."""
    texts = []
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py")):
        if "site-packages" not in file.parts:
            content = file.read_text(errors="replace")
            texts += [content[at : at + _PIECE] for at in range(0, len(content), _PIECE)]
    count, written = 0, 0
    with path.open("w") as out:
        while written < size:
            for text in texts:
                written += out.write(f"{json.dumps({'text': f'{count} {text}'})}\n")
                count += 1
                if written >= size:
                    break
    return count


def train_tokenizer(path: Path, file: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    byte = Tokenizer(models.BPE())
    byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte.decoder = decoders.ByteLevel()
    with path.open() as rows:
        texts = [json.loads(line)["text"] for line, _ in zip(rows, range(2000), strict=False)]
    byte.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=8000, special_tokens=["<eos>"], show_progress=False)
    )
    byte.save(str(file))


def measured(folder: Path, path: Path, rows: int, size: int, way: str) -> dict[str, Any]:
    """Return what a way takes: from the folder where it was measured before by the same code."""
    code = hashlib.sha256(f"{commit()}{_CHILD}".encode()).hexdigest()[:12]
    result_file = folder / f"{size}-{way.replace(' ', '-')}-{code}.json"
    if result_file.exists():
        result: dict[str, Any] = json.loads(result_file.read_text())
        return result
    cache = folder / f"{size}-{way}"
    shutil.rmtree(cache, ignore_errors=True)  # of a call that was stopped
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "HF_HOME": str(cache),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "RAYON_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", _CHILD, str(path), str(folder / "tokenizer.json"), way]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, memory, owned, tokens = json.loads(done.stdout.splitlines()[-1])
    shutil.rmtree(cache, ignore_errors=True)
    result = {
        "megabytes": size,
        "rows": rows,
        "way": way,
        "processor_seconds": seconds,
        "rows_per_second": rows / seconds,
        "highest_mib": memory,
        "highest_own_mib": owned,
        "tokens": tokens,
    }
    result_file.write_text(json.dumps(result))
    return result


def material(folder: Path, size: int) -> tuple[Path, int]:
    """Return rows of about so many megabytes, and how many: those of an earlier call where they are whole."""
    path, counted = folder / f"rows-{size}.jsonl", folder / f"rows-{size}.count"
    if not counted.exists():
        counted.write_text(str(write_rows(path, size * 2**20)))
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(path, folder / "tokenizer.json")
    return path, int(counted.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--folder", type=Path, help="that keeps rows and results for a later call")
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for size in given.megabytes:
            path, rows = material(folder, size)
            for way in given.ways:
                results.append(measured(folder, path, rows, size, way))
                print(json.dumps(results[-1]), flush=True)
    sizes = "-".join(map(str, given.megabytes))
    write_result(HERE, {"runs": results}, f"stream-{sizes}")


if __name__ == "__main__":
    main()
