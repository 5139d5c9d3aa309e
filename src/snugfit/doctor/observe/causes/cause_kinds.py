"""The kind of statement that causes a pitfall, for those that are seen where their effect is: a test of a part of it, the surest kind first."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import BY_SIZE, last_name

Test = Callable[[ast.AST, str], bool]
"""A test of a part of a statement, and of the name that the statement gives on the way to where the pitfall was seen."""

LABELS = re.compile(r"^[yt](_\w+)?$|label|target|tgt|truth|future|wanted|price|energ", re.IGNORECASE)
LOSS = re.compile(r"(?i)loss|criterion|cross_entropy|nll|bce|mse|l1$|_fn$")
_TAUGHT = re.compile(r"target|teacher|momentum|old|expected|bootstrap|\badv", re.IGNORECASE)
_SQUASH = frozenset(
    [
        "softmax",
        "log_softmax",
        "softmin",
        "sigmoid",
        "logsigmoid",
        "Softmax",
        "LogSoftmax",
        "Sigmoid",
        "Softmax2d",
    ]
)
_AXIS = frozenset(["softmax", "log_softmax", "argmax", "normalize", "cumsum", "Softmax", "LogSoftmax"])
_SHAPES = frozenset(["reshape", "view", "flatten"])
_NUMBERS = frozenset(
    [
        "float",
        "from_numpy",
        "astype",
        "as_tensor",
        "tensor",
        "frombuffer",
        "ToTensor",
        "PILToTensor",
        "pil_to_tensor",
        "imread",
        "decode_image",
        "Compose",
        "open",
    ]
)
_INFINITE = frozenset(["log", "log2", "log10", "sqrt", "rsqrt", "acos", "asin", "atanh", "reciprocal"])
_TAKES_OUT = frozenset(["detach", "item", "numpy", "tolist"])
_SHIFTS = frozenset(
    ["clone", "copy", "roll", "stack", "tensor", "as_tensor", "LongTensor", "from_numpy", "long"]
)
_DROPS = frozenset(
    ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "scaled_dot_product_attention"]
)
_HANDED = frozenset(
    ["next", "to", "cuda", "cpu", "float", "long", "unsqueeze", "squeeze", "view", "reshape", "flatten"]
)


def calls(names: frozenset[str]) -> Test:
    """Return the test for a call of one of these names."""
    return lambda node, _: isinstance(node, ast.Call) and last_name(node.func) in names


def keyword(*names: str) -> Test:
    """Return the test for an argument, or an entry, of one of these names."""

    def test(node: ast.AST, _: str) -> bool:
        return isinstance(node, ast.keyword) and node.arg in names

    return test


def named(pattern: re.Pattern[str], test: Test) -> Test:
    """Return a test that holds where the statement's name matches too, and is no argument by which something is handed on."""
    return lambda node, name: "=" not in name and bool(pattern.search(name)) and test(node, name)


def _unguarded(node: ast.AST, _: str) -> bool:
    """Return whether something is called that is infinite, or no number, for some numbers, and nothing holds its argument off."""
    if not isinstance(node, ast.Call) or not (last_name(node.func) in _INFINITE or _is_negative_power(node)):
        return False
    if ast.unparse(node.func).startswith("math."):
        return False  # of a number
    inner = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    guarded = any(
        (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add))
        or (
            isinstance(part, ast.Call)
            and last_name(part.func) in ("clamp", "clip", "clamp_min", "maximum", "softmax", "max")
        )
        for each in inner
        for part in ast.walk(each)
    )
    return not guarded


def _is_negative_power(node: ast.Call) -> bool:
    exponents = [
        each for each in node.args if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub)
    ]
    return last_name(node.func) in ("pow", "power") and bool(exponents)


def _fills_infinite(node: ast.AST, _: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and last_name(node.func) in ("masked_fill", "masked_fill_")
        and "inf" in ast.unparse(node)
    )


def _divides(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)


def _multiplies(node: ast.AST, _: str) -> bool:
    """Return whether two things are multiplied, neither of which stands there as a number."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("mul", "multiply")
    product = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mult)
    return product and not any(isinstance(each, ast.Constant) for each in ast.iter_child_nodes(node))


def _graph_left_out(node: ast.AST, _: str) -> bool:
    """Return whether gradients are taken of which no graph is made."""
    takes = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("autograd.grad")
    return takes and all(each.arg != "create_graph" for each in node.keywords)  # type: ignore[attr-defined]


def _without_graph(node: ast.AST, name: str) -> bool:
    """Return whether something is taken out of its graph."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return True
    return calls(_TAKES_OUT)(node, name) or _graph_left_out(node, name)


def _stops_gradient(node: ast.AST, name: str) -> bool:
    steps = isinstance(node, ast.Call) and last_name(node.func) in ("tensor", "argmax", "round", "sign")
    return steps or _without_graph(node, name)


def _gives_numbers(node: ast.AST, name: str) -> bool:
    """Return whether numbers are made of what is stored, or are scaled."""
    return calls(_NUMBERS)(node, name) or _divides(node, name)


def _makes(node: ast.AST, _: str) -> bool:
    """Return whether something is made, not handed on."""
    return isinstance(node, ast.Call) and last_name(node.func) not in _HANDED


def _cuts(node: ast.AST, _: str) -> bool:
    """Return whether a part from one place to another is taken."""
    if not isinstance(node, ast.Subscript):
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(each, ast.Slice) and (each.lower or each.upper) is not None for each in parts)


def _has_sum_for_reduction(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "reduction" and ast.unparse(node.value) == "'sum'"


def _adds_one(node: ast.AST, _: str) -> bool:
    """Return whether one is added to something, as to labels that are then counted from 1."""
    added = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else None
    started = isinstance(node, ast.keyword) and node.arg == "start" and ast.unparse(node.value) == "1"
    return started or (added is not None and ast.unparse(added) == "1")


def _negates(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _sums(node: ast.AST, _: str) -> bool:
    """Return whether all of a tensor is summed up."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return False
    return node.func.attr == "sum" and len(node.args) == (last_name(node.func.value) == "torch")


def _fills(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _of_padding(node: ast.AST, name: str) -> bool:
    pads = isinstance(node, ast.Name | ast.Attribute) and re.match(
        r"(?i)^pad(_?(id|token|idx|index|token_id))?$", last_name(node)
    )
    return bool(pads and LABELS.search(name)) or (
        isinstance(node, ast.Call) and last_name(node.func) == "pad_sequence" and bool(LABELS.search(name))
    )


def _gathers_no_mask(node: ast.AST, _: str) -> bool:
    """Return whether lists of a batch are begun for its tokens and for no mask."""
    if not isinstance(node, ast.Dict) or not all(isinstance(each, ast.List) for each in node.values):
        return False
    keys = [str(each.value) for each in node.keys if isinstance(each, ast.Constant)]
    return any(each.endswith("ids") for each in keys) and not any("mask" in each for each in keys)


def _leaves_mask_out(node: ast.AST, name: str) -> bool:
    """Return whether a batch is given that is made of tokens and of no mask, or of one that hides nothing."""
    if isinstance(node, ast.Assign):
        text = ast.unparse(node)
        return "mask" in text.partition("=")[0] and bool(re.search(r"\bones(_like)?\(", text))
    keys = (
        [str(each.value) for each in node.keys if isinstance(each, ast.Constant)]
        if isinstance(node, ast.Dict)
        else []
    )
    return (
        name == "return"
        and any(each.endswith("ids") for each in keys)
        and not any("mask" in each for each in keys)
    )


def _reads_all_places(node: ast.AST, _: str) -> bool:
    """Return whether all places of a text, or the last one, are read: a mean over an axis, the last step."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("mean", "amax", "max")
    ):
        return bool(node.args or node.keywords)
    if not isinstance(node, ast.Subscript):
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return len(parts) > 1 and any(ast.unparse(each) == "-1" for each in parts)


def _reads_both_ways(node: ast.AST, _: str) -> bool:
    """Return whether a recurrent layer is made that reads a series from its end too."""
    both = isinstance(node, ast.keyword) and node.arg == "bidirectional"
    return both and ast.unparse(node.value) != "False"  # type: ignore[attr-defined]


def _hides(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in (
        "tril",
        "triu",
        "masked_fill",
        "masked_fill_",
        "generate_square_subsequent_mask",
        "scaled_dot_product_attention",
    )


def _keeps_graph(node: ast.AST, _: str) -> bool:
    """Return whether something is added to a sum or a list, and nothing takes it out of its graph."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        added: ast.AST = node.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and _adds_to_itself(node):
        added = node.value.right
    elif (
        isinstance(node, ast.Call)
        and last_name(node.func) in ("append", "extend", "add")
        and len(node.args) == 1
    ):
        added = node.args[0]
    else:
        return False
    names = {last_name(each) for each in ast.walk(added) if isinstance(each, ast.Attribute | ast.Name)}
    return isinstance(added, ast.Name | ast.Attribute | ast.BinOp) and not names & {
        *_TAKES_OUT,
        "float",
        "cpu",
    }


def _adds_to_itself(node: ast.Assign) -> bool:
    """Return whether a statement sets a name to itself and more."""
    value = node.value
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and ast.unparse(value.left) == ast.unparse(node.targets[0])
    )


def _is_mean(node: ast.AST, _: str) -> bool:
    """Return whether a mean is taken: by its name, or by a loss that takes it unless told otherwise."""
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    loss = re.search(r"(cross_entropy|nll_loss|mse_loss|l1_loss|with_logits|^criterion|^loss_f\w+)$", name)
    return name == "mean" or bool(loss and all(each.arg != "reduction" for each in node.keywords))


def _unfreezes(node: ast.AST, _: str) -> bool:
    if isinstance(node, ast.Assign):
        return last_name(node.targets[0]) == "requires_grad" and ast.unparse(node.value) == "True"
    return (
        isinstance(node, ast.Call)
        and last_name(node.func) == "requires_grad_"
        and ast.unparse(node).endswith("requires_grad_(True)")
    )


def _shares_end(node: ast.AST, _: str) -> bool:
    return (
        isinstance(node, ast.Assign)
        and bool(re.match(r"(?i)pad(_?(token|id|idx|index))*$", last_name(node.targets[0])))
        and bool(re.match(r"(?i)(eos|end)(_?(token|id|idx|index))*$", last_name(node.value)))
    )


def _sets_transform(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.Assign) and bool(
        re.search(r"\.dataset\.\w*(transform|tf|aug)\w*$", ast.unparse(node.targets[0]))
    )


def _tests_rate(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.Call) and bool(
        re.search(
            "(?i)(lr|rate)_?(find|range|test|sweep)|(find|range|test|sweep)\\w*_?(lr|rate)|range_?test",
            last_name(node.func),
        )
    )


def _reads_unmasked(node: ast.AST, _: str) -> bool:
    """Return whether a part that mixes places is called without a mask or lengths."""
    if not isinstance(node, ast.Call) or not re.search(
        "(?i)encoder|transformer|attn|attention|lstm|gru|rnn", last_name(node.func)
    ):
        return False
    given = " ".join(map(ast.unparse, [*node.args, *(each.value for each in node.keywords)]))
    return not re.search("(?i)mask|length|packed", given + " ".join(each.arg or "" for each in node.keywords))


_STARTS = frozenset(["backward", "step", "scale", "zero_grad", "manual_backward", "train", "fit"])


def _computes(node: ast.AST, _: str) -> bool:
    """Return whether something is computed: not where that is differentiated, an object is made, or a whole training is started."""
    if isinstance(node, ast.BinOp | ast.Compare):
        return True
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Call) and name not in {*_STARTS, *_HANDED} and not name[:1].isupper()


def _diverges(node: ast.AST, _: str) -> bool:
    """Return whether a sum has a square and an exponential in it, as the divergence from a normal distribution has, or such a divergence is called for."""
    if isinstance(node, ast.Call):
        return last_name(node.func) == "kl_divergence"
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
        return False
    names = {last_name(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    powers = any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow) for each in ast.walk(node))
    return bool(names & {"exp", "log"}) and (powers or bool(names & {"pow", "square"}))


def _calls_loss(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.Call) and bool(LOSS.search(last_name(node.func)))


def _writes_special(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.BinOp | ast.JoinedStr) and any(
        _names_special(each, name) for each in ast.walk(node)
    )


def _returns_tuple(node: ast.AST, name: str) -> bool:
    return name == "return" and isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)


def _names_special(node: ast.AST, _: str) -> bool:
    """Return whether a token that tokenizers put around a text is written by hand, or they are told to."""
    if isinstance(node, ast.keyword):
        return node.arg == "add_special_tokens"
    if isinstance(node, ast.Attribute):
        return node.attr in ("bos_token", "eos_token", "cls_token", "sep_token")
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(re.search(r"\[(CLS|SEP)\]|</?s>|<bos>|<\|\w+\|>", node.value))
    )


def _seeds_sampler(node: ast.AST, _: str) -> bool:
    """Return whether a sampler is made with a seed of its own."""
    made = isinstance(node, ast.Call) and last_name(node.func).endswith("Sampler")
    return made and any(each.arg == "seed" for each in node.keywords)  # type: ignore[attr-defined]


def _goes_around(node: ast.AST, _: str) -> bool:
    """Return whether what a wrapper holds is called in its place."""
    return isinstance(node, ast.Call) and last_name(node.func) == "module"


def _divides_by_count(node: ast.AST, _: str) -> bool:
    return _divides(node, _) and "len(" in ast.unparse(node)


def _takes_what_trains(node: ast.AST, _: str) -> bool:
    """Return whether parameters are chosen by whether they train."""
    chooses = isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.Call)
    return chooses and "parameters()" in (text := ast.unparse(node)) and "requires_grad" in text


def _compares_sizes(node: ast.AST, _: str) -> bool:
    """Return whether two values are compared by size, as a score with the best one."""
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], BY_SIZE)


def _runs_nothing(node: ast.AST, _: str) -> bool:
    """Return whether something else is called than a library's whole training or evaluation."""
    return isinstance(node, ast.Call) and last_name(node.func) not in (
        "train",
        "fit",
        "evaluate",
        "validate",
        "test",
    )


def _makes_schedule(node: ast.AST, _: str) -> bool:
    return isinstance(node, ast.Call) and bool(re.search("LR$|[Ss]chedule", last_name(node.func)))


class Kind(NamedTuple):
    """The kinds of statements that cause a pitfall, the surest first, by where they stand.

    Args:
        back: on the way back from where it is seen; ahead: on the way on from there; `anywhere`: the first of the script.
        here: what is no cause by itself and may be named, where it is seen there.
        side: of a call of a loss, the argument that is meant: 0 for predictions, 1 for targets; None for all.
        within: also sought back from a line of a model's own forward pass.
    """

    back: tuple[Test, ...] = ()
    ahead: tuple[Test, ...] = ()
    anywhere: tuple[Test, ...] = ()
    here: tuple[Test, ...] = ()
    side: int | None = None
    within: bool = False


KINDS: dict[str, Kind] = {
    "accumulation": Kind(ahead=(_is_mean,), here=(calls(frozenset(["backward", "step"])),)),
    "batch_mean_scores": Kind(
        ahead=(_divides_by_count,), here=(lambda node, _: isinstance(node, ast.Assign | ast.AugAssign),)
    ),
    "best_not_copied": Kind(back=(calls(frozenset(["state_dict"])),)),
    "broadcast_loss": Kind(back=(_computes,)),
    "constant_term": Kind(back=(_graph_left_out, _without_graph, _computes)),
    "dropped_columns": Kind(
        back=(
            keyword("remove_unused_columns"),
            lambda node, _: isinstance(node, ast.Call) and last_name(node.func).endswith("Arguments"),
        )
    ),
    "end_never_scored": Kind(back=(_shares_end,), anywhere=(_shares_end,)),
    "group_holes": Kind(anywhere=(_unfreezes,), here=(calls(frozenset(["add_param_group"])),)),
    "growing_graph": Kind(ahead=(_keeps_graph,), anywhere=(_keeps_graph,)),
    "ignored_labels": Kind(
        back=(named(re.compile("ids|token|text|seq|label"), _cuts), keyword("max_length"))
    ),
    "late_weights": Kind(back=(_multiplies,), here=(_multiplies,)),
    "leakage": Kind(
        back=(named(re.compile("^(eval|val|test)"), _computes),), here=(_runs_nothing, _compares_sizes)
    ),
    "learning_rate": Kind(back=(keyword("lr", "learning_rate", "max_lr"),), here=(_makes_schedule,)),
    "loss_terms": Kind(back=(_has_sum_for_reduction, _sums, _computes), here=(calls(frozenset(["kl_div"])),)),
    "no_gradient": Kind(back=(_stops_gradient,)),
    "non_finite_loss": Kind(back=(_unguarded, _fills_infinite, _divides)),
    "not_distributed": Kind(back=(_seeds_sampler,), here=(_goes_around,)),
    "not_frozen": Kind(back=(_takes_what_trains,)),
    "own_row_scored": Kind(back=(_computes,)),
    "random_validation": Kind(back=(_sets_transform,), anywhere=(_sets_transform,)),
    "range_test_kept": Kind(anywhere=(_tests_rate,)),
    "rows_left_out": Kind(back=(calls(frozenset(["WeightedRandomSampler"])),)),
    "schedule_length": Kind(
        back=(
            keyword(
                "num_warmup_steps",
                "num_training_steps",
                "T_max",
                "total_steps",
                "warmup_steps",
                "warmup_ratio",
                "max_steps",
            ),
        )
    ),
    "read_two_ways": Kind(
        back=(_diverges,),
        anywhere=(_diverges,),
        here=(calls(frozenset(["exp", "exp_", "softplus", "sqrt"])),),
    ),
    "scored_padding": Kind(
        back=(_of_padding, named(LABELS, _fills), named(LABELS, calls(frozenset(["clone", "copy"])))),
        here=(_calls_loss, calls(frozenset(["gather"]))),
        side=1,
    ),
    "sees_the_future": Kind(back=(_hides, _reads_both_ways), within=True),
    "shifted_labels": Kind(
        back=(named(LABELS, _cuts), named(LABELS, calls(_SHIFTS)), keyword("mlm")),
        here=(keyword("decoder_input_ids"),),
        side=1,
    ),
    "softmax_twice": Kind(back=(calls(_SQUASH),), side=0),
    "sorted_classes": Kind(back=(calls(frozenset(["DataLoader"])),)),
    "special_tokens": Kind(back=(_writes_special, _names_special)),
    "summed_loss": Kind(back=(_has_sum_for_reduction, _sums, _computes)),
    "target_gradients": Kind(back=(named(_TAUGHT, _computes), _returns_tuple)),
    "train_mode": Kind(here=(calls(_DROPS),)),
    "truncation": Kind(back=(keyword("max_length"),)),
    "unmasked_padding": Kind(back=(_gathers_no_mask, _leaves_mask_out, _reads_all_places, _reads_unmasked)),
    "unused_class": Kind(back=(_adds_one,), side=1),
    "unknown_label": Kind(back=(keyword("blank"),)),
    "unscaled_inputs": Kind(back=(_gives_numbers,), side=0),
    "unscaled_targets": Kind(back=(named(LABELS, _makes),), side=1),
    "wrong_scores": Kind(back=(_computes,)),
    "wrong_sign": Kind(back=(_diverges, _computes), here=(_negates,)),
    "wrong_axis": Kind(back=(calls(_AXIS | _SHAPES),), side=0),
}
"""What causes a pitfall, by the pitfall."""
