"""What import-linter cannot say: which imports wait inside functions, that none go round in a circle, and where a tensor may become a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
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
SHOWN = "a result shows its page where it is asked for it, and the page is made of the result"
OF_RECIPE = "a recipe is asked for its text, its hash and its code, which are read off its declarations"
# Imports that wait in a function because they would go round in a circle: from a module to another, and why they stay.
CIRCLES_IN_FUNCTIONS = {
    ("doctor.examination", "doctor.page"): SHOWN,
    ("planner.answers.answer", "planner.answers.plan_figures"): SHOWN,
    ("recipe.declarations", "recipe.write"): OF_RECIPE,
    (
        "recipe.write",
        "recipe.load",
    ): "what differs from the defaults is told by loading a recipe that gives nothing else",
    ("run.training.result", "run.from_recipe"): "a result goes on with its run, which gives a result",
    ("tools.cross_validation.result", "tools.cross_validation.page"): SHOWN,
    ("tools.find_batch.result", "tools.find_batch.page"): SHOWN,
    ("tools.profile.result", "tools.profile.page"): SHOWN,
    ("tools.tune.result", "tools.tune.page"): SHOWN,
}
IN_FUNCTION = re.compile(r"^ +from (snugfit[\w.]*) import (\([^)]*\)|[^\n(]*)", re.MULTILINE)
IN_THE_STEP = ("core", "kit", "techniques", "step/step.py", "step/window_gradients.py")


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


# A function or a class begins: most modules import nothing behind their first one, and need not be parsed further.
BEGINS = re.compile(r"^(?:async def|def|class|@)", re.MULTILINE)
MAY_IMPORT = re.compile(r"^(?:from|import|if|else|try|with)\b", re.MULTILINE)


def head_of(text: str) -> ast.Module:
    """The module, or as much of it as has all the imports that are in no function."""
    first = BEGINS.search(text)
    if first is not None and MAY_IMPORT.search(text, first.start()) is None:
        try:
            return ast.parse(text[: first.start()])
        except SyntaxError:  # within a text
            pass
    return ast.parse(text)


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules, or names in them, that a module imports outside of functions: those under TYPE_CHECKING too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import by a whole name says where it leads"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.stmt | ast.ExceptHandler) and not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef
        ):
            yield from imported(node)


def import_graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports, of these; a name that is none is of the module that it is imported from."""
    graph = {}
    for module, text in texts.items():
        names = set(imported(head_of(text)))
        graph[module] = {name if name in texts else name.rpartition(".")[0] for name in names} & texts.keys()
        graph[module].discard(module)
    return graph


def waiting(text: str) -> Iterator[str]:
    """Modules, or names in them, of the imports that do not stand at the edge of a line: in functions, or for types."""
    for module, names in IN_FUNCTION.findall(text):
        for name in re.findall(r"\w+(?: as \w+)?", names.partition("#")[0]):
            yield f"{module}.{name.partition(' ')[0]}"


def reached_from(graph: Mapping[str, Iterable[str]], module: str) -> set[str]:
    behind: set[str] = set()
    left = [module]
    while left:
        new = set(graph[left.pop()]) - behind
        behind |= new
        left += new
    return behind


def circles_by_functions(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """The imports in functions that would close a circle if they stood at the top: from a module to another."""
    graph = import_graph(texts)
    inside = {
        (module, name if name in texts else name.rpartition(".")[0])
        for module, text in texts.items()
        for name in waiting(text)
    }
    after = {other: reached_from(graph, other) for _, other in inside if other in texts}
    return {(module, other) for module, other in inside if module in after.get(other, ())}


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of imports, from a module back to itself; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def modules() -> dict[str, str]:
    """The text of each module, by its name."""
    return {
        ".".join(("snugfit", *Path(name).with_suffix("").parts)).removesuffix(".__init__"): (
            SOURCE / name
        ).read_text(encoding="utf-8")
        for name in sources()
    }


def test_no_imports_go_round_in_a_circle_not_even_for_types() -> None:
    graph = import_graph(modules())
    assert "snugfit.step.window_gradients" in graph["snugfit.step.step"]
    assert circle_in(graph) == []


def test_an_import_that_waits_in_a_function_to_close_no_circle_is_named_with_its_reason() -> None:
    assert circles_by_functions(modules()) == {
        (f"snugfit.{module}", f"snugfit.{other}") for module, other in CIRCLES_IN_FUNCTIONS
    }


def test_a_circle_that_waits_in_a_function_is_seen() -> None:
    texts = {
        "snugfit.a": "from snugfit import b",
        "snugfit.b": "def f():\n    from snugfit.a import (\n        one,\n        two as three,\n    )\n",
        "snugfit.c": "def f():\n    from snugfit import a  # a closes none\n",
    }
    assert circles_by_functions(texts) == {("snugfit.b", "snugfit.a")}


def test_a_circle_is_seen_that_is_of_types_alone_and_not_one_that_waits_in_a_function() -> None:
    texts = {
        "a": "from b import c\nimport d",
        "b.c": 'TEXT = """\nclass C:\n    from b import e\n"""\nif TYPE_CHECKING:\n    from a import A\ndef f():\n    pass',
        "d": "def f():\n    import a",
        "e": "class E:\n    pass\nif TYPE_CHECKING:\n    from d import D",
    }
    graph = import_graph(texts)
    assert graph == {"a": {"b.c", "d"}, "b.c": {"a"}, "d": set(), "e": {"d"}}
    assert set(circle_in(graph)) == {"a", "b.c"}
    assert circle_in({**graph, "b.c": set()}) == []


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
