"""The diff for a loop: the patched script prints what the script printed, or the answer says what stands in the way."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from snugfit.cli import main
from snugfit.errors import DataError
from snugfit.tools.init.loop_diff import loop_diff

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)
y = (x.sum(1) > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
PLAIN = (
    HEAD
    + """\
for epoch in range(3):
    total = 0.0
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total:.5f}, last {loss:.5f}")
"""
)
IN_A_FUNCTION = (
    HEAD
    + """\
def main():
    criterion = nn.MSELoss()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(2):
        for batch in loader:
            a, b = batch
            loss = criterion(
                model(a), b.float().unsqueeze(1)
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            print(round(float(loss.detach().item()), 5))
        scheduler.step()


main()
"""
)
STEP = "        optimizer.zero_grad()\n        loss = F.cross_entropy(net(inputs), labels)\n        loss.backward()\n        optimizer.step()\n"
LOOP = "for epoch in range(2):\n    for inputs, labels in loader:\n" + STEP


def printed(path: Path) -> str:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    return done.stdout


def patched(path: Path) -> str:
    """Return the script's text with its diff, as `patch` would make it."""
    before = path.read_text()
    lines = loop_diff(path).diff.splitlines(keepends=True)
    texts, place = before.splitlines(keepends=True), 0
    after: list[str] = []
    for line in lines[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1].lstrip("-").split(",")[0]) - 1
            after += texts[place:start]
            place = start
        elif line.startswith("+"):
            after.append(line[1:])
        else:
            assert texts[place] == line[1:]
            after += [line[1:]] if line.startswith(" ") else []
            place += 1
    assert path.read_text() == before
    return "".join([*after, *texts[place:]])


@pytest.mark.parametrize("text", [PLAIN, IN_A_FUNCTION])
@pytest.mark.slow  # two processes with torch
def test_the_patched_script_prints_the_same(text: str, tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(text)
    (tmp_path / "after.py").write_text(patched(Path("loop.py")))
    assert "sf.Step(" in (tmp_path / "after.py").read_text()
    lines = printed(path).split()
    assert len(lines) > 3 and lines == printed(tmp_path / "after.py").split()


def test_the_step_is_made_once_and_takes_the_place_of_the_loops_statements(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(PLAIN)
    after = patched(Path("loop.py"))
    made = [line for line in difflib.ndiff(PLAIN.splitlines(), after.splitlines()) if line.startswith("+ ")]
    assert made == [
        "+ import snugfit as sf",
        "+ train_step = sf.Step(net, optimizer, techniques=[sf.ClipNorm(0.1)])",
        "+         result = train_step((inputs, labels))",
        "+         total += result.loss",
        '+     print(f"epoch {epoch}: {total:.5f}, last {result.loss:.5f}")',
    ]
    assert 'sf.Step(model, optimizer, loss="mse")' in patched_text(IN_A_FUNCTION)


def patched_text(text: str) -> str:
    Path("other.py").write_text(text)
    return patched(Path("other.py"))


@pytest.mark.parametrize(
    ("text", "model"), [("AutoModelForCausalLM", "causal_lm"), ("AutoModelForSequenceClassification", None)]
)
def test_a_loss_of_the_models_own_is_known_by_its_class(text: str, model: str | None) -> None:
    loop = f"from transformers import {text}\nfor batch in loader:\n    out = model(**batch)\n    loss = out.loss\n    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    after = patched_text(loop)
    assert "result = step(batch)" in after and "out = " not in after
    assert ('loss="causal_lm"' in after) is (model is not None)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (LOOP.replace("loss.backward()", "scaler.scale(loss).backward()"), 5, "not statements of one loop"),
        (
            LOOP.replace("        optimizer.step()", "        if epoch:\n            optimizer.step()"),
            5,
            "not statements of one loop",
        ),
        (LOOP.replace("F.cross_entropy(", "my_loss("), 4, "my_loss is not cross_entropy"),
        (LOOP.replace("labels)\n", "labels, label_smoothing=0.1)\n"), 4, "expected LOSS"),
        (LOOP.replace("net(inputs)", "net(inputs, labels)"), 4, "more than one input"),
        (LOOP.replace("net(inputs)", "net(inputs).view(-1, 2)"), 4, "not the model's output as it is"),
        (LOOP + "        print(loss.grad_fn.name())\n", 7, "loss is a number"),
        (LOOP + "\n" + LOOP, 9, "a second loop"),
        (
            LOOP.replace(
                "loss = F.cross_entropy(net(inputs)", "out = net(inputs)\n        loss = F.cross_entropy(out"
            )
            + "        print(out.argmax(1))\n",
            8,
            "'out' is used for more than the loss",
        ),
        ("def one_epoch(loader, optimizer):\n    for inputs, labels in loader:\n" + STEP, 1, "made once"),
        ("trainer = transformers.Trainer(model)\ntrainer.train()\n", 1, "Trainer has the loop"),
        ("model = 1\n", None, "no training loop"),
    ],
)
def test_what_stands_in_the_way_is_said_with_its_line(text: str, line: int | None, problem: str) -> None:
    Path("loop.py").write_text(text)
    with pytest.raises(DataError) as error:
        loop_diff(Path("loop.py"))
    assert error.value.setting == ("loop.py" if line is None else f"loop.py:{line}")
    assert problem in error.value.problem
    assert error.value.remedy


def test_the_command_prints_the_diff_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Path("loop.py").write_text(LOOP.replace("for epoch", "import torch\nfor epoch"))
    assert main(["init", "--from", "loop.py"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("--- a/loop.py\n+++ b/loop.py\n") and "patch -p1" in shown.err
    assert main(["init", "--from", "loop.py", "rows.csv"]) == 2
