"""How long until something happens? `snugfit --help`, `import snugfit`, and process start to first update.

    python benchmarks/startup/run.py                   needs pip install 'snugfit[bench]'
    python benchmarks/startup/run.py --without-peers   needs Snugfit alone

CPU time of child processes (user and system), interleaved; medians of the repeats. About 20 s a repeat with peers.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import keep_compiled_files, paired_ratio, write_result

MODEL = (
    "import torch; from torch import nn\nmodel = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))\n"
)
DATA = "data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))\n"
LOADER = "loader = torch.utils.data.DataLoader(data, batch_size=32)\n"
FIRST_UPDATE = {
    "hand-written": MODEL
    + DATA
    + LOADER
    + """
optimizer = torch.optim.AdamW(model.parameters())
inputs, labels = next(iter(loader))
nn.functional.cross_entropy(model(inputs), labels).backward()
optimizer.step()
""",
    "snugfit Step": MODEL
    + DATA
    + LOADER
    + """
import snugfit as sf
step = sf.Step(model, sf.AdamW())
step(next(iter(loader)))
""",
    "snugfit train": MODEL
    + DATA
    + """
import os, tempfile
import snugfit as sf
def first(event):
    if event["event"] == "update":
        os._exit(0)
sf.train(model, data, optimizer=sf.AdamW(), output=tempfile.mkdtemp(), display=first)
""",
    "Lightning": MODEL
    + DATA
    + LOADER
    + """
import os, tempfile, lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
    def on_train_batch_end(self, *_):
        os._exit(0)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tempfile.mkdtemp()).fit(Module(), loader)
""",
    "HF Trainer": MODEL
    + DATA
    + """
import os, tempfile
from transformers import Trainer, TrainerCallback, TrainingArguments
class Loss(Trainer):
    def compute_loss(self, model, inputs, **_):
        return nn.functional.cross_entropy(model(inputs["x"]), inputs["y"])
class First(TrainerCallback):
    def on_step_end(self, *_, **__):
        os._exit(0)
rows = [{"x": x, "y": y} for x, y in data]
arguments = TrainingArguments(tempfile.mkdtemp(), report_to=[], use_cpu=True, remove_unused_columns=False)
collate = lambda rows: {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
Loss(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[First()]).train()
""",
}
MISTAKES = {
    "a YAML typo": "task: text-classification\nmodel: m\ndata: {train: rows.csv\n",
    "a misspelt setting": "task: text-classification\nmodel: m\ndata: {train: rows.csv}\ntrain: {epoch: 3}\n",
    "a file that is not there": "task: text-classification\nmodel: m\ndata: {train: row.csv}\ntechniques: [lora]\n",
    "a column that is not there": "task: text-classification\nmodel: m\ndata: {train: rows.csv, label: lable}\n",
    "more tokens than the model reads": "task: text-classification\nmodel: ./bert\ndata: {train: rows.csv, max_length: 4096}\n",
}
"""Recipes that are refused: what a cheap mistake costs."""

PEERS = ("Lightning", "HF Trainer")

COMMANDS = {
    "snugfit --help": [sys.executable, "-c", "from snugfit.cli import main; main()", "--help"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import snugfit, all names": [
        sys.executable,
        "-c",
        "import torch; from snugfit import Step, train, AdamW",
    ],
    **{f"first update: {name}": [sys.executable, "-c", script] for name, script in FIRST_UPDATE.items()},
}


def train_command(text: str) -> list[str]:
    """Return the command that trains a recipe, and is refused."""
    script = """
import sys, tempfile
from pathlib import Path
from snugfit.cli import main
path = Path(tempfile.mkdtemp(), "recipe.yaml")
path.write_text(sys.argv[1])
path.with_name("rows.csv").write_text("text,label\\na,b\\n")
path.with_name("bert").mkdir()
path.with_name("bert").joinpath("config.json").write_text('{"model_type": "bert", "max_position_embeddings": 512}')
assert main(["train", str(path)]) == 2
"""
    return [sys.executable, "-c", script, text]


def run(command: list[str]) -> tuple[float, float]:
    """CPU seconds and wall seconds of one child."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{result.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--without-peers", action="store_true", help="leave Lightning and HF Trainer out")
    options = parser.parse_args()
    keep_compiled_files()
    peers = PEERS if options.without_peers else ()
    own = {name: command for name, command in COMMANDS.items() if not name.endswith(peers)}
    commands = {**own, **{name: train_command(text) for name, text in MISTAKES.items()}}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for repeat in range(options.repeats + 1):
        print(
            f"repeat {repeat} of {options.repeats}" if repeat else "warming up", file=sys.stderr, flush=True
        )
        for name, command in commands.items():
            value = run(command)
            if repeat > 0:  # the first round fills the page cache
                times[name].append(value)
    table = {
        name: {
            "cpu_seconds": statistics.median(cpu for cpu, _ in values),
            "wall_seconds": statistics.median(wall for _, wall in values),
            "repeats": values,
        }
        for name, values in times.items()
    }
    for name, row in table.items():
        print(f"{name:36s} {row['cpu_seconds']:6.2f} s CPU  {row['wall_seconds']:6.2f} s")
    cpu = {name: [value for value, _ in values] for name, values in times.items()}
    ratio = paired_ratio(cpu["import snugfit, all names"], cpu["import torch"])
    print(
        f"import snugfit over import torch: {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
    )
    result = {"question": (__doc__ or "").splitlines()[0], "commands": table, "import_ratio": ratio}
    print(write_result(Path(__file__).parent, result))


if __name__ == "__main__":
    main()
