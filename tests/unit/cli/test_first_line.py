"""What a command says first, it says before it imports what takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (
    "plan rows.yaml",
    "train rows.yaml",
    "resume RUN",
    "evaluate RUN rows.csv",
    "predict RUN rows.csv -o out.csv",
    "generate RUN --prompt Hello",
    "export RUN --to gguf -o gguf",
    "soup RUN RUN --data rows.csv -o soup",
    "tune rows.yaml --search optimizer.adamw.learning_rate=log:1e-4..1e-2",
    "cv rows.yaml",
    "find lr rows.yaml",
    "find batch rows.yaml",
    "profile rows.yaml",
    "certify rows.yaml",
    "doctor rows.yaml",
    "doctor rows.csv",
    "doctor package.module:model",
    "env",
    "techniques",
    "schema",
    "new technique mine",
)

EACH = """
import json, os, sys
from snugfit.cli import main
from snugfit.display.activity import Activity

HEAVY = ("torch", "numpy", "transformers", "mlflow", "rich")

def at_first(activity):
    loaded = [name for name in HEAVY if name in sys.modules]
    os.write(1, json.dumps([line, activity.text, loaded]).encode() + b"\\n")
    os._exit(0)

Activity.__enter__ = at_first
for line in json.loads(sys.argv[1]):
    if os.fork() == 0:  # so that what one imports is not there for the next one
        sys.stderr = open(os.devnull, "w")
        main(line.split())
        os.write(1, json.dumps([line, None, []]).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_each_command_says_what_it_does_before_it_imports_a_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text("task: text-classification\nmodel: m\ndata: {train: rows.csv}\n")
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(COMMANDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line, _, _ in said] == list(COMMANDS), done.stderr
    assert [each for each in said if not each[1] or each[2]] == []


MISTAKES = {
    "train rows.yaml": "data.train: there is no file missing.csv",
    "train long.yaml": "data.max_length: 4096 is more than the 512 tokens that this model can read",
    "plan long.yaml": "data.max_length: 4096 is more than the 512 tokens that this model can read",
    "resume": "no run in runs was stopped and has a checkpoint",
    "resume nowhere": "no such run folder",
    "doctor missing.csv": "there is no file missing.csv",
    "doctor rows.csv.bz2": "bunzip2 -k rows.csv.bz2",
    "doctor rows.csv --text words": "--text: rows.csv has no column 'words'",
}

WITHOUT = """
import json, os, sys
from snugfit.cli import main

for line in json.loads(sys.argv[1]):
    if os.fork() == 0:
        code = main(line.split())
        print(json.dumps([line, code, [name for name in ("torch", "numpy", "transformers") if name in sys.modules]]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_a_mistake_is_said_without_numpy_or_torch(tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(
        "task: text-classification\nmodel: m\ndata: {train: missing.csv}\ntechniques: [lora]\n"
    )
    (tmp_path / "long.yaml").write_text(
        "task: text-classification\nmodel: ./bert\ndata: {train: rows.csv, max_length: 4096}\ntechniques: [lora]\n"
    )
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    (tmp_path / "rows.csv.bz2").write_bytes(b"BZh9")
    (tmp_path / "bert").mkdir()
    config = {"model_type": "bert", "max_position_embeddings": 512}
    (tmp_path / "bert/config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps([*MISTAKES])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[line, 2, []] for line in MISTAKES]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert [said in error for said, error in zip(MISTAKES.values(), errors, strict=True)] == [True] * len(
        MISTAKES
    ), errors
