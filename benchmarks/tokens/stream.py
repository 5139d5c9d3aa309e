"""What does it take to tokenise a text that is read as a stream? Processor seconds and the highest memory, beside `datasets.map` and a file whose tokens are kept.

Memory is what the process was resident with, and of that its own, without files that are mapped into it, which the system takes back when it needs room.

    python benchmarks/tokens/stream.py --megabytes 200

Rows are the standard library's source files in pieces of about 2,000 characters, repeated up to the size; the tokenizer has 8,000 tokens of bytes,
trained on them. Each way in a process of its own, with one thread: `data.stream: 1024`, one pass into blocks of 256 tokens; `data.stream` left out,
the tokens not in the cache; and `datasets.map` in batches of 1,000, its cache on the disk too. Writes results/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import write_result

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
    while True:
        owned[0] = max(owned[0], own() - begun)
        time.sleep(0.2)
threading.Thread(target=watch, daemon=True).start()
settings, rows, tokens = CausalSettings(path, validation=None, max_length=256), 0, 0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 200])
    sizes = parser.parse_args().megabytes
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for size in sizes:
            path = folder / "rows.jsonl"
            rows = write_rows(path, size * 2**20)
            if not (folder / "tokenizer.json").exists():
                train_tokenizer(path, folder / "tokenizer.json")
            for way in WAYS:
                environment = {
                    **os.environ,
                    "XDG_CACHE_HOME": f"{folder}/{size}-{way}",
                    "HF_HOME": f"{folder}/{size}-{way}",
                    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
                    "RAYON_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                }
                command = [sys.executable, "-c", _CHILD, str(path), str(folder / "tokenizer.json"), way]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                seconds, memory, owned, _ = json.loads(done.stdout.splitlines()[-1])
                results.append(
                    {
                        "megabytes": size,
                        "rows": rows,
                        "way": way,
                        "processor_seconds": seconds,
                        "rows_per_second": rows / seconds,
                        "highest_mib": memory,
                        "highest_own_mib": owned,
                    }
                )
                print(json.dumps(results[-1]), flush=True)
    write_result(HERE, {"runs": results}, "stream")


if __name__ == "__main__":
    main()
