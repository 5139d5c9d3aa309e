"""What do language models learn here, from scratch and from conversations, and what does it cost beside others?

    python benchmarks/language/run.py shakespeare     tiny Shakespeare from scratch; --stop-after 5m, and the same again goes on
    python benchmarks/language/run.py instructions    that model, tuned with the right end of turn and with another
    python benchmarks/language/run.py peers           tokens a CPU second and memory beside HF Trainer and TRL
    … --tiny                                          a tiny model, to see whether it runs; writes no results

- shakespeare: the first nine tenths of the text are trained on, the last tenth never is, nor is the tokenizer learned from it. The loss of each token is the model's in a
  block of some length; all of a block but its first token is scored. The figure is that of the last evaluation: no best is picked, and the recipe was set without that tenth.
- instructions: pairs of speeches that follow one another, of the same tenths. The loss is that of held-out answers rendered by the right template, up to its end of turn; the
  answers are written by transformers alone, greedily.
- peers: the same windows, weights, optimizer (AdamW) and clipping, with the defaults of each otherwise, one thread; minima over repeats that alternate.

The folder keeps what was trained (--folder, by default under the system's temporary files). The tables in README.md are made from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import instructions  # noqa: E402
import peers  # noqa: E402
import shakespeare  # noqa: E402
from commands import newest_run  # noqa: E402
from common import write_result  # noqa: E402

MIB = 2**20
SHARED = Path(os.environ.get("SNUGFIT_SHARED_DATA", HERE.parents[2] / "shared" / "data"))


def run_shakespeare(given: argparse.Namespace) -> dict[str, Any]:
    size = shakespeare.TINY if given.tiny else shakespeare.FULL
    run = shakespeare.train(text_of(given), given.folder, size, given.stop_after)
    return {"size": vars(size), **shakespeare.figures(run, given.folder / "held_out.txt")}


def run_instructions(given: argparse.Namespace) -> dict[str, Any]:
    run = newest_run(given.folder / "runs")
    if run is None:
        raise SystemExit(f"{given.folder} holds no model: run shakespeare first")
    size = instructions.TINY if given.tiny else instructions.FULL
    folder = given.folder / "instructions"
    folder.mkdir(exist_ok=True)
    return instructions.figures(
        run / "best", given.folder / "train.txt", given.folder / "held_out.txt", folder, size
    )


def run_peers(given: argparse.Namespace) -> dict[str, Any]:
    size = peers.TINY if given.tiny else peers.FULL
    return {
        "size": vars(size),
        **{
            task: peers.figures(task, text_of(given), given.folder / "peers" / task, size)
            for task in peers.WORK
        },
    }


def text_of(given: argparse.Namespace) -> Path:
    if given.text.is_file():
        return Path(given.text).resolve()
    raise SystemExit(f"{given.text} is not there: name the file with --text")


def shakespeare_table(result: Mapping[str, Any]) -> list[str]:
    size = result["size"]
    lines = [
        f"## Tiny Shakespeare from scratch: {result['nats']:.3f} nats a character",
        f"`python benchmarks/language/run.py shakespeare`, {result['date']}, commit {result['commit']}: {result['parameters']:,} parameters, {size['vocabulary']} tokens learned "
        f"from the text, {size['updates']} updates of {size['global_batch']} blocks of {size['length']}; **{result['cpu_seconds'] / 60:.1f} minutes of CPU time**, all threads, evaluations "
        f"and start included (10 minutes on two cores are 20); {result['machine']['processor']}. The last tenth was never trained on.",
        "| updates | CPU minutes | nats a character of the last tenth |\n|---|---|---|\n"
        + "\n".join(
            f"| {point['update']} | {point['cpu_seconds'] / 60:.1f} | {point['nats']:.3f} |"
            for point in result["curve"]
        ),
    ]
    if not result["finished"]:
        lines.append("(The run is not at its end.)")
    return lines


def instructions_table(result: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {ending} | {figures['loss']:.3f} | {figures['at the end of turn']:.1%} | {figures['at that or the end of sequence']:.1%} |"
        for ending, figures in result.items()
        if isinstance(figures, dict) and "loss" in figures
    ]
    return [
        "## Tuned by conversations: what ends a turn",
        f"`python benchmarks/language/run.py instructions`, {result['date']}, commit {result['commit']}: the model above, tuned by {result['rows']:,} pairs of speeches; "
        f"{result['held_out']} of the last tenth are answered, with at most {result['longest_answer']} tokens.",
        "| scored as the end of a turn in training | loss of answers with the right end | stop at the end of turn | or at the end of sequence |\n|---|---|---|---|\n"
        + "\n".join(rows),
    ]


def peers_table(result: Mapping[str, Any]) -> list[str]:
    size = result["size"]
    rows = []
    for task in peers.WORK:
        for name in peers.WORK[task]:
            figures = result[task][name]
            rows.append(
                f"| {task} | {name} | {figures['tokens_per_cpu_second']:,.0f} | {figures['peak_bytes'] / MIB:,.0f} | "
                f"{(figures['peak_bytes'] - figures['before_bytes']) / MIB:,.0f} | {figures['losses_off']:.1e} |"
            )
    return [
        "## Beside HF Trainer and TRL",
        f"`python benchmarks/language/run.py peers`, {result['date']}, commit {result['commit']}: {size['layers']} layers of {size['width']}, {size['vocabulary']:,} tokens, windows of "
        f"{size['global_batch']} × at most {size['length']}, {size['updates']} updates, one thread, least of {size['repeats']} repeats; load {result['machine']['load']:.1f}.",
        "| work | | tokens a CPU second | peak, MiB | of that training, MiB | losses off by, at most |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows),
    ]


PARTS: dict[
    str, tuple[Callable[[argparse.Namespace], dict[str, Any]], Callable[[Mapping[str, Any]], list[str]]]
] = {
    "shakespeare": (run_shakespeare, shakespeare_table),
    "instructions": (run_instructions, instructions_table),
    "peers": (run_peers, peers_table),
}


def write_readme() -> None:
    """Write the tables of the newest result of each part."""
    lines = [
        "# Language models, from scratch to answers",
        "Made from the JSON in results/ by run.py, whose head says what is measured.",
    ]
    for part, (_, table) in PARTS.items():
        if paths := sorted((HERE / "results").glob(f"{part}-*.json")):
            lines += table(json.loads(paths[-1].read_text()))
        else:
            lines.append(f"## {part}: not measured yet (`python benchmarks/language/run.py {part}`)")
    (HERE / "README.md").write_text("\n\n".join(lines) + "\n")


def main() -> None:
    if sys.argv[1:2] == ["measure"]:  # of peers, in a process of its own
        peers.measure(sys.argv[2], Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--text", type=Path, default=SHARED / "tinyshakespeare.txt")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "snugfit-language")
    parser.add_argument(
        "--stop-after", help="stop the training after this time, such as 5m; the same command goes on"
    )
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    given.folder = given.folder.resolve() / "tiny" if given.tiny else given.folder.resolve()
    run, _ = PARTS[given.part]
    result = run(given)
    if given.tiny:
        print(json.dumps(result, indent=1))
        return
    print(write_result(HERE, result, name=given.part))
    write_readme()


if __name__ == "__main__":
    main()
