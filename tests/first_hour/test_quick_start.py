"""The commands of the quick start, one after the other as the page has them, in an empty folder and a process of their own.

What stands there for something of the reader's is filled in: runs for `<id>`, a short time for hours. The rows are few and drawn.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import snugfit
from tests.unit.tasks.tiny_encoder import write_encoder

PAGE = (Path(snugfit.__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
SHORT = {"--time 3h": "--time 20s", "--stop-after 2h": "--stop-after 0.01s"}
"""What a reader has hours for."""
STOPPED = 75
REGISTERED = "train tickets.yaml track.register=NAME"
"""What the section that uses a registered model says in words."""

CHILD = """
import contextlib, json, sys
from pathlib import Path
from snugfit.cli import main

def newest(kind):
    return str(max(Path("runs", kind).glob("2*"), key=lambda run: run.stat().st_mtime))

for arguments in json.loads(Path(sys.argv[1]).read_text()):
    given = [newest(each.removeprefix("NEWEST ")) if each.startswith("NEWEST ") else each for each in arguments]
    try:
        status = main(given)
    except SystemExit as end:
        status = end.code
    print(json.dumps({"command": arguments, "status": status}), flush=True)
"""


def commands_of(page: str) -> list[list[str]]:
    """The arguments of each `snugfit` line in the blocks of a page, with runs to be filled in."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if language or not line.startswith("snugfit "):
                continue
            line = re.sub(r"\s{2,}#.*", "", line)
            for long, short in SHORT.items():
                line = line.replace(long, short)
            line = re.sub(r"runs/(\w+)/(?:<id>|ID|…)", r"'NEWEST \1'", line)
            found.append(shlex.split(line)[1:])
    return found


def ends_of(command: list[str]) -> tuple[int | None, ...]:
    """The exit codes that are an answer to a command."""
    if "--stop-after" in command:
        return (0, STOPPED)
    # a model as small as the one here need not learn a batch by heart, which is what is asked
    return (0, 1) if "--overfit-batches" in command else (0, None)


def write_rows(folder: Path) -> None:
    """Write the files that the page speaks of."""
    draw = random.Random(0)
    texts = [
        (kind, f"{kind} film in {draw.choice(['rome', 'oslo'])} {n}")
        for n in range(40)
        for kind in ("good", "bad")
    ]
    lines = [f"film {n},{text},{kind}" for n, (kind, text) in enumerate(texts)]
    for name, head in (
        ("tickets", "subject,body,team"),
        ("my", "title,text,label"),
        ("test", "subject,body,team"),
    ):
        (folder / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    (folder / "new.csv").write_text("subject,body\nfilm,good film in rome\n")
    for colour in ("red", "blue"):
        (folder / "photos" / colour).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (24, 24 + number), colour).save(folder / f"photos/{colour}/{number}.png")
    turns = [
        [
            {"role": "user", "content": f"What is {n} and {n}?"},
            {"role": "assistant", "content": f"It is {n + n}."},
        ]
        for n in range(40)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    (folder / "new.jsonl").write_text(
        "".join(json.dumps({"messages": each[:1]}) + "\n" for each in turns[:2])
    )
    write_encoder(
        folder / "sentence-transformers" / "all-MiniLM-L6-v2", tokens=128
    )  # the one of the hub, in small


@pytest.mark.slow
@pytest.mark.longest
def test_every_command_does_what_the_page_says(tmp_path: Path) -> None:
    here = tmp_path / "an empty folder"
    here.mkdir()
    write_rows(here)
    commands = commands_of(PAGE)
    assert len(commands) > 20, "the page has its commands in blocks of another form"
    (recipe,) = re.findall(r"^```yaml\n(name: tickets\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (here / "tickets.of_the_page.yaml").write_text(recipe)
    # the recipe that init has written makes room for that of the page where the page has it
    place = commands.index(["train", "tickets.yaml"])
    before, after = commands[:place], commands[place:]
    registered = next(place for place, each in enumerate(after) if any("models:/" in part for part in each))
    after.insert(registered, REGISTERED.split())
    (tmp_path / "before.json").write_text(json.dumps(before))
    (tmp_path / "after.json").write_text(json.dumps(after))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SNUGFIT_")}
    environment |= {"HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "hub")}
    said = []
    for part in ("before", "after"):
        if part == "after":
            os.replace(here / "tickets.of_the_page.yaml", here / "tickets.yaml")
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / f"{part}.json")],
            cwd=here,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        said += [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"command"')]
        failed = [each for each in said if each["status"] not in ends_of(each["command"])]
        assert (failed, done.returncode) == ([], 0), done.stderr[-3000:]
    assert [each["command"] for each in said] == before + after
    assert (here / "out.csv").read_text().startswith("subject,body,prediction")
    assert len((here / "answers.jsonl").read_text().splitlines()) == 2
