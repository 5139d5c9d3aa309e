"""The commands. Heavy libraries are loaded by the command that needs them.

Results go to stdout, with `--json` as one object on the last line; everything else goes to stderr. Exit codes:
0 finished, 1 the run failed, 2 the input is wrong, 75 stopped and resumable, 130 interrupted before or after a run.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from snugfit.cli.catalogue import recipe, schema, tasks, techniques
from snugfit.cli.certify import certify
from snugfit.cli.common.interrupts import INTERRUPTED, whole_imports
from snugfit.cli.common.options import (
    AllowCodeOption,
    BadRowsOption,
    JsonOption,
    OverrideArguments,
    QuietOption,
    RecipeArgument,
    RegistryOption,
    RunArgument,
    StopAfterOption,
    TimeOption,
    number_or_word,
)
from snugfit.cli.common.output import refuse, show, usage
from snugfit.cli.common.planner_process import PlannerProcess
from snugfit.cli.common.streams import lasting_streams
from snugfit.cli.common.training import (
    placement_settings,
    resume_run,
    run_options,
    split,
    train_on_rows,
    train_recipe,
)
from snugfit.cli.cv import cv
from snugfit.cli.doctor import CommandAfterDashes, doctor
from snugfit.cli.env import env
from snugfit.cli.export import export
from snugfit.cli.find import find_app
from snugfit.cli.generate import generate
from snugfit.cli.init import init
from snugfit.cli.new import new_app
from snugfit.cli.plan import plan
from snugfit.cli.profile import profile
from snugfit.cli.runs import runs
from snugfit.cli.soup import soup
from snugfit.cli.track import track_app
from snugfit.cli.tune import tune
from snugfit.display.activity import Activity
from snugfit.errors import RanksLost, SaidElsewhere, SettingError, SnugfitError
from snugfit.system.messages import own_warnings
from snugfit.system.processes import (
    end_with_parent,
    is_over,
    is_rank,
    launched,
    make_torch_quiet,
    record_failure,
)
from snugfit.system.redaction import redact
from snugfit.units import parse_bytes

app = typer.Typer(
    epilog="Begin with: snugfit init FILE, such as a table of texts with labels",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(track_app, name="track", help="Send runs to a tracker.")
app.add_typer(find_app, name="find", help="Find a setting of a recipe by trying it.")
app.add_typer(new_app, name="new", help="Begin a technique of your own.")

_RunOrNone = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run's folder, or one of runs, such as the default runs/: the newest there that can go on.",
    ),
]
_Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The folder of a run or of a cross-validation, or a stored model: models:/agnews@champion.",
    ),
]
_Others = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="SOURCE", help="Another model that predicts together with it; may be repeated."
    ),
]
_Beams = Annotated[
    int,
    typer.Option(
        "--num-beams",
        metavar="N",
        help="Of a model that writes: texts gone on with at once, of which the likeliest is taken.",
    ),
]
_Views = Annotated[
    str,
    typer.Option(
        "--views",
        metavar="K|flips",
        help="Views of each picture, drawn as in training, or it and its mirror image; their mean counts.",
    ),
]
_FastDevRun = Annotated[
    bool, typer.Option("--fast-dev-run", help="Two updates, evaluate, save and load back.")
]
_OverfitBatches = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Train on N batches only: can it learn them by heart?")
]
_Devices = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Of this machine, which share each update (plan.devices)."),
]
_Strategy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="How they share: auto, ddp, fsdp, fsdp-zero2 … (plan.strategy)."),
]
_MicroBatch = Annotated[
    str | None,
    typer.Option(metavar="N", help="Examples of one forward and backward, auto or null (plan.micro_batch)."),
]
_MaxRestarts = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Times to go on from the newest checkpoint when a process died."),
]
_AcceptChanges = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Go on though these have changed, as a refusal names them: data,loss."
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(version("snugfit"))
        except PackageNotFoundError:
            print("unknown: this copy is not installed")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train and fine-tune PyTorch models inside the memory and the time you have."""


@app.command(epilog="Example: snugfit train agnews.yaml train.epochs=1 --stop-after 2h")
def train(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Without a recipe: a file or folder to train on, or hf://OWNER/NAME."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="The task, where the data are of use for several.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="The columns of text: title,text.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of labels.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A Hugging Face name, a folder, or a network's name.")
    ] = None,
    time: TimeOption = None,
    stop_after: StopAfterOption = None,
    fast_dev_run: _FastDevRun = False,
    overfit_batches: _OverfitBatches = None,
    plan: Annotated[bool, typer.Option(help="Plan first, and run what fits.")] = True,
    replan: Annotated[bool, typer.Option("--replan", help="Plan anew, though a plan is kept.")] = False,
    devices: _Devices = None,
    strategy: _Strategy = None,
    max_restarts: _MaxRestarts = 0,
    into: Annotated[Path | None, typer.Option(hidden=True)] = None,
    allow_code: AllowCodeOption = False,
    accept_changes: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Train from a recipe, or from a data file.

    Without a recipe, data are enough: task, columns and a model that can be had here are found out, said, and written into a recipe
    here, as `snugfit init` does.
    """
    options = run_options(
        stop_after,
        quiet,
        time=time,
        accept_changes=accept_changes,
        fast_dev_run=fast_dev_run,
        overfit_batches=overfit_batches,
        plan=plan,
        into=into,
        replan=replan,
    )
    path, changes = split(recipe, overrides)
    changes += placement_settings(devices, strategy)
    if path is None and data is not None:
        named = {"task": task, "model": model, "data.text": text, "data.label": label}
        return train_on_rows(data, changes, options, max_restarts, as_json, quiet, named=named)
    if path is None:
        raise SettingError(
            "train",
            "got neither a recipe nor data",
            "Name a recipe, or what to train on with --data. For an example type: snugfit train --help",
        )
    of_rows = {"--data": data, "--task": task, "--text": text, "--label": label, "--model": model}
    given = [option for option, value in of_rows.items() if value is not None]
    if given:
        raise SettingError(
            given[0],
            "is set by an option, and there is a recipe",
            "Write the setting as key=value, such as data.train=FILE.",
        )
    from snugfit.cli.common import recipes
    from snugfit.recipe import located

    with located(path, changes), PlannerProcess(options, Path(path)) as planner:
        with Activity(text="reading the recipe …", at_once=False, quiet=quiet or launched()):
            loaded = recipes.load(
                path, changes, allow_code=allow_code, quiet=quiet, before_libraries=planner.begin
            )
        return train_recipe(loaded, options, planner, max_restarts, as_json, quiet)


@app.command(epilog="Example: snugfit resume runs/agnews/20261121-0930-1a2b")
def resume(
    run: _RunOrNone = None,
    accept_changes: _AcceptChanges = None,
    stop_after: StopAfterOption = None,
    devices: _Devices = None,
    strategy: _Strategy = None,
    micro_batch: _MicroBatch = None,
    max_restarts: _MaxRestarts = 0,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Go on with a stopped or killed run.

    Of a folder of runs, without RUN runs/, that is the newest that can go on. It goes on from its newest valid checkpoint, bit for bit as if it had never stopped; on other devices, or in other micro-batches, up to
    rounding. Settings, data, code and the model's files must be those it began with.
    """
    options = run_options(stop_after, True, accept_changes=accept_changes)
    changes = placement_settings(devices, strategy, micro_batch)
    return resume_run(run, options, max_restarts, changes, as_json, quiet, allow_code=allow_code)


@app.command(epilog="Example: snugfit evaluate runs/agnews/20261121-0930-1a2b test.csv")
def evaluate(
    source: _Source,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Labelled rows, with the columns of the training.")
    ],
    metrics: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="What to measure: accuracy,macro_f1, or package.module:function of your own.",
        ),
    ] = "",
    others: _Others = None,
    views: _Views = "1",
    num_beams: _Beams = 1,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of the device, for the scores of a language model: 6GiB."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with each class, what is taken for what, calibration and the worst rows.",
        ),
    ] = None,
    bad_rows: BadRowsOption = "fail",
    uri: RegistryOption = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score the best model of a run on labelled rows."""
    with Activity("evaluate", f"loading the model, then scoring {data} …"):
        from snugfit.deliver.predict import evaluate_file
        from snugfit.step.metrics.metric import metrics_in

        scores = evaluate_file(
            source,
            data,
            metrics_in(metrics),
            others=tuple(others or ()),
            views=number_or_word(views),
            num_beams=num_beams,
            memory=None if memory is None else parse_bytes(memory, "memory"),
            bad_rows=bad_rows,
            uri=uri,
            allow_code=allow_code,
            page=page,
        )
    if page is not None:
        from snugfit.report.evaluation_page import write_evaluation_page

        page.parent.mkdir(parents=True, exist_ok=True)
        details = scores.pop("details")
        scores |= {
            # a page has them in a table
            **({"classes": details.by_class()} if as_json and details.classes else {}),
            **({"calibration_error": details.calibration_error} if details.bins else {}),
            "page": str(write_evaluation_page(source, data, scores["metrics"], details, page)),
        }
    show(scores, as_json)


@app.command(epilog="Example: snugfit predict models:/agnews@champion new.csv -o predictions.csv")
def predict(
    source: _Source,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Rows with the columns of the training, or a folder of pictures."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The CSV file to write.")],
    top: Annotated[
        int, typer.Option("--top", metavar="K", help="So many classes of each row, the likeliest first.")
    ] = 1,
    proba: Annotated[bool, typer.Option("--proba", help="The probability of each class too.")] = False,
    others: _Others = None,
    views: _Views = "1",
    num_beams: _Beams = 1,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of the device, for texts that are written: 6GiB.")
    ] = None,
    bad_rows: BadRowsOption = "fail",
    uri: RegistryOption = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write rows with their predictions.

    The file has the columns of DATA, and 'prediction' and 'probability'.
    """
    with Activity("predict", f"loading the model, then reading {data} …"):
        from snugfit.deliver.predict import predict_file

        summary = predict_file(
            source,
            data,
            output,
            others=tuple(others or ()),
            views=number_or_word(views),
            num_beams=num_beams,
            memory=None if memory is None else parse_bytes(memory, "memory"),
            top=top,
            proba=proba,
            bad_rows=bad_rows,
            uri=uri,
            allow_code=allow_code,
        )
    show(summary, as_json)


app.command(
    short_help="Have a trained language model answer.",
    epilog="Example: snugfit generate runs/chats/20261121-0930-1a2b --prompt 'Who are you?'",
)(generate)
app.command(
    short_help="Write a trained model in the form that other libraries load.",
    epilog="Example: snugfit export runs/chats/20261121-0930-1a2b --to gguf -o chats-gguf",
)(export)


@app.command(epilog="Example: snugfit report runs/agnews/20261121-0930-1a2b")
def report(run: RunArgument, as_json: JsonOption = False) -> None:
    """Write a run's report.html anew."""
    from snugfit.report.page import write_report

    show({"report": str(write_report(run))}, as_json)


app.command(
    short_help="Make one model of the mean of several runs' weights.",
    epilog="Example: snugfit soup runs/a/20261121-0930-1a2b runs/a/20261121-1015-3c4d --data held-out.csv -o soup",
)(soup)
app.command(
    short_help="List and compare runs.",
    epilog="Example: snugfit runs --sort accuracy",
)(runs)
app.command(
    short_help="Write a recipe that runs, for what is here.",
    epilog="Example: snugfit init tickets.csv",
)(init)
app.command(
    short_help="Say what a recipe needs in memory and time.",
    epilog="Example: snugfit plan agnews.yaml --device rtx4090 --explain",
)(plan)
app.command(
    short_help="Say where the time and memory of updates go.",
    epilog="Example: snugfit profile agnews.yaml --memory",
)(profile)
app.command(
    short_help="Try the laws of training on your own model and data.",
    epilog="Example: snugfit certify agnews.yaml --rows 4",
)(certify)
app.command(
    short_help="Train a recipe on folds of its rows, and score each.",
    epilog="Example: snugfit cv agnews.yaml --folds 5 --repeats 2",
)(cv)
app.command(
    short_help="Search for the best values of a recipe's settings.",
    epilog="Example: snugfit tune agnews.yaml --search optimizer.adamw.learning_rate=log:1e-5..1e-3",
)(tune)
app.command(
    cls=CommandAfterDashes,
    short_help="Look for pitfalls in recipes, models, data and scripts.",
    epilog="Example: snugfit doctor -- python train.py --epochs 1",
)(doctor)


app.command(epilog="Example: snugfit techniques ema")(techniques)
app.command(
    short_help="List what recipes can train, or describe one task.",
    epilog="Example: snugfit tasks text-classification",
)(tasks)
app.command(
    short_help="List the settings of recipes, or describe one.",
    epilog="Example: snugfit recipe early_stopping.patience",
)(recipe)
app.command(epilog="Example: snugfit schema -o snugfit.schema.json")(schema)
app.command(epilog="Example: snugfit env > environment.txt")(env)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    warned = own_warnings(lambda text: print(f"warning: {text}", file=sys.stderr))
    with lasting_streams(), warned, whole_imports():
        return _main(arguments)


@functools.cache  # it takes 40 ms, and a process may run several commands
def _command() -> Callable[..., Any]:
    return get_command(app)


def _main(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in arguments
    if is_rank():
        make_torch_quiet()
    if launched():
        end_with_parent()
    if is_over():
        return 0
    try:
        code = _command()(arguments or ["--help"], prog_name="snugfit", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED and not launched():  # typer has caught it before we could
            return refuse("KeyboardInterrupt", "interrupted", INTERRUPTED, as_json)
        return code if isinstance(code, int) else 0
    except SaidElsewhere as error:
        return error.exit_code
    except SnugfitError as error:
        code, lost = error.exit_code, isinstance(error, RanksLost)
        if record_failure(error, code, self_explanatory=True, final=error.comes_again, lost=lost):
            return code
        return refuse(type(error).__name__, str(error), code, as_json)
    except (KeyboardInterrupt, typer.Abort):
        if launched():
            return INTERRUPTED
        return refuse("KeyboardInterrupt", "interrupted", INTERRUPTED, as_json)
    except Exception as error:  # noqa: BLE001 - the last to see it: it is printed whole, without secrets
        if hasattr(
            error, "format_message"
        ):  # typer's, whose classes change their home from version to version
            return refuse("UsageError", usage(error), 2, as_json)
        if record_failure(error, 1, self_explanatory=False, final=False, lost=False):
            return 1
        if as_json:
            print(
                json.dumps({"error": {"kind": type(error).__name__, "message": redact(str(error))}}),
                flush=True,
            )
        # Python would print it as it is
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="", flush=True)
        return 1
