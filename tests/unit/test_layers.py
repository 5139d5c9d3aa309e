"""What import-linter cannot say: which imports wait inside functions, where a tensor may become a number, and how modules are named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src/snugfit"
HEAVY = {
    "accelerate",
    "bitsandbytes",
    "datasets",
    "deepspeed",
    "matplotlib",
    "mlflow",
    "optuna",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "tensorboard",
    "timm",
    "tokenizers",
    "torchao",
    "torchmetrics",
    "trackio",
    "transformers",
    "wandb",
}
# MLflow runs this file by its path, in a process of its own; nothing of Snugfit imports it.
RUN_BY_MLFLOW = {"deliver/pyfunc_model.py"}
# The one door from a tensor to a Python number; and the batch, whose labels and lengths are counted on the host.
READS_TENSORS = {"core/scalar_reads.py", "core/batch.py"}
# A module's name says the thing or the act.
RIDDLES = frozenset(
    [
        "told",
        "telling",
        "found",
        "kept",
        "expected",
        "refused",
        "reached",
        "chosen",
        "remembered",
        "interposed",
        "placing",
        "everywhere",
        "elsewhere",
        "several",
        "beside",
    ]
)
IN_THE_STEP = ("core", "kit", "techniques", "step/step.py", "step/compute.py")


def sources(*places: str) -> list[str]:
    files = [file for place in places or ("",) for file in _files(SOURCE / place)]
    return sorted(str(file.relative_to(SOURCE)) for file in files)


def _files(place: Path) -> list[Path]:
    return [place] if place.suffix == ".py" and place.exists() else list(place.rglob("*.py"))


def imported_at_once(tree: ast.AST) -> Iterator[str]:
    """Top-level packages that importing the module imports: not those in functions or under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from imported_at_once(ast.Module(node.orelse, []))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported_at_once(node)


def parsed(words: Iterable[str], *folders: str) -> dict[str, ast.Module]:
    """The modules of these folders, or all, that have one of the words, by name: to parse the others takes seconds."""
    texts = {name: (SOURCE / name).read_text(encoding="utf-8") for name in sources(*folders)}
    assert len(texts) > 100
    word = re.compile(rf"\b({'|'.join(words)})\b")
    return {name: ast.parse(text) for name, text in texts.items() if word.search(text)}


def test_heavy_packages_are_imported_only_inside_functions() -> None:
    heavy = {
        name: HEAVY.intersection(imported_at_once(tree))
        for name, tree in parsed(HEAVY).items()
        if name not in RUN_BY_MLFLOW
    }
    assert len(heavy) > 50 and {name: each for name, each in heavy.items() if each} == {}


def test_the_step_and_the_techniques_read_tensors_only_through_one_door() -> None:
    reads = [
        f"{name}:{call.lineno}"
        for name, tree in parsed(("item", "tolist"), *IN_THE_STEP).items()
        if name not in READS_TENSORS
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("item", "tolist")
    ]
    assert reads == []


def test_no_module_is_named_by_a_participle_or_an_adverb() -> None:
    assert [name for name in sources() if RIDDLES.intersection(Path(name).stem.split("_"))] == []


def test_an_import_under_type_checking_or_in_a_function_is_not_counted_as_one_at_once() -> None:
    text = """
import ast
if TYPE_CHECKING:
    import transformers
else:
    import rich
try:
    import mlflow.pyfunc
except ImportError:
    from sklearn import metrics
def later():
    import pandas
"""
    assert set(imported_at_once(ast.parse(text))) == {"ast", "rich", "mlflow", "sklearn"}
