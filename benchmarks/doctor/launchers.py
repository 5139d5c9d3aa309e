"""Does `snugfit doctor` find the same in a script, however it is started?

    python benchmarks/doctor/launchers.py [LAUNCHER ...]

Runs scripts of tests/doctor, each of another kind, as commands: by `python`, with another library imported before torch, by `python -m`,
`torchrun`, `accelerate launch`, by `mp.spawn` and by forking. Each must end as by `python`, be looked at whole, and show the same findings.
What is done lies in results/launchers-DATE.jsonl, a line for each run: run again on the same day, it goes on behind the last one. At the
end the lines become one JSON file, and the table between the markers of docs/tools/doctor.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")

from common import put_on_page, write_result  # noqa: E402

from snugfit.doctor.observe import observe  # noqa: E402

PAGE = ROOT / "docs/tools/doctor.md"
FOLDER = ROOT / "tests/doctor"
SCRIPTS = (
    "clean/vae",
    "clean/dqn",
    "clean/graph_convolution",
    "faulty/softmax_twice_1",
    "faulty/zero_grad_1",
    "faulty/wrong_axis_1",
)
PLAIN = "python"
ASIDE = 'import runpy\n\ndef work(rank):\n    runpy.run_path("train.py", run_name="__main__")\n\nif __name__ == "__main__":\n    '
ENTRIES = {
    PLAIN: ("python train.py", ""),
    "transformers first": (
        "python entry.py",
        'import transformers\nimport runpy\nrunpy.run_path("train.py", run_name="__main__")\n',
    ),
    "python -m": ("python -m train", ""),
    "torchrun": ("torchrun --standalone --nproc-per-node 1 train.py", ""),
    "accelerate launch": ("accelerate launch --cpu --num_processes 1 train.py", ""),
    "mp.spawn": (
        "python entry.py",
        f"{ASIDE}import torch.multiprocessing as mp\n    mp.spawn(work, nprocs=1)\n",
    ),
    "fork": (
        "python entry.py",
        f'{ASIDE}import torch.multiprocessing as mp\n    mp.start_processes(work, nprocs=1, start_method="fork")\n',
    ),
    "deepspeed": ("deepspeed train.py", ""),
}
"""For each way to start: the command, and the script that it starts, where that is another one."""


def start(script: str, launcher: str) -> dict[str, Any]:
    """Run a script by a launcher, and say how it ended and what was found."""
    command, entry = ENTRIES[launcher]
    program, *arguments = command.split()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copy(FOLDER / f"{script}.py", "train.py")
        Path("entry.py").write_text(entry)
        seen = observe([str(Path(sys.executable).with_name(program)), *arguments], seconds=600)
    findings = sorted(
        {f"{each.pitfall} {each.certainty} {each.where.rpartition('/')[2]}" for each in seen.findings}
    )
    return {
        "script": script,
        "launcher": launcher,
        "exit_code": seen.exit_code,
        "updates": seen.updates_seen,
        "findings": findings,
        "left_out": list(seen.left_out),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return, for each launcher, in how many scripts the same was seen as by `python`, as Markdown."""
    plain = {row["script"]: row for row in rows if row["launcher"] == PLAIN}
    lines = ["| started by | scripts | the same as by `python` | otherwise |", "|---|---|---|---|"]
    for launcher in ENTRIES:
        mine = [row for row in rows if row["launcher"] == launcher and row["script"] in plain]
        same = ("exit_code", "updates", "findings", "left_out")
        other = [
            row["script"] for row in mine if any(row[name] != plain[row["script"]][name] for name in same)
        ]
        if mine:
            lines.append(
                f"| `{launcher}` | {len(mine)} | {len(mine) - len(other)} | {', '.join(other) or 'none'} |"
            )
        elif launcher != PLAIN:
            lines.append(f"| `{launcher}` | 0 | not run: it is not installed | |")
    return "\n".join(lines)


def main() -> None:
    done_path = HERE / "results" / f"launchers-{time.strftime('%Y-%m-%d')}.jsonl"
    rows = [json.loads(line) for line in done_path.read_text().splitlines()] if done_path.exists() else []
    done = {(row["script"], row["launcher"]) for row in rows}
    for launcher, (command, _) in ENTRIES.items():
        program = command.split()[0]
        there = Path(sys.executable).with_name(program).exists()
        if not there or (
            launcher == "transformers first" and importlib.util.find_spec("transformers") is None
        ):
            continue
        for script in SCRIPTS:
            if (script, launcher) in done or (len(sys.argv) > 1 and launcher not in (PLAIN, *sys.argv[1:])):
                continue
            rows.append(start(script, launcher))
            print(
                f"{launcher}: {script}: {rows[-1]['findings']} {rows[-1]['left_out']}",
                file=sys.stderr,
                flush=True,
            )
            with done_path.open("a") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
    path = write_result(HERE, {"runs": rows}, "launchers")
    done_path.unlink(missing_ok=True)
    put_on_page(PAGE, "launchers", table(rows))
    print(path)


if __name__ == "__main__":
    main()
