"""Secrets are left out by where they stand, by the name they stand under and by their shape; everything else stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snugfit.errors import TrackingError
from snugfit.recipe.load import build
from snugfit.recipe.strict_yaml import Places
from snugfit.report.svg import escape
from snugfit.results.run_folder import RunFolder
from snugfit.run import launch
from snugfit.run.events import Events
from snugfit.system.redaction import redact, redacted
from snugfit.tracking.backend import reason
from snugfit.tracking.spool import read_events
from snugfit.tracking.translate import _text
from snugfit.tracking.uri import check_uri, resolve_uri

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9"
TOKENS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "sk-proj-abcdefghijklmnopqrst1234567890",
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrSt_uv-wx",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwx",
    "glpat-abcDEF123456ghiJKL78",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "dapi0123456789abcdef0123456789abcdef",
    "dapi0123456789abcdef0123456789abcdef-2",
    "xoxb-123456789012-abcdefghijkl",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA",
    JWT,
]

ADDRESSES = {
    "https://me:SECRET@host/mlflow": "https://me:***@host/mlflow",
    "https://me:SEC@RET@host:5000/x": "https://me:***@host:5000/x",
    "https://me:SEC/RET@host/x": "https://me:***@host/x",
    "https://me:SE@C/RET@host/x": "https://me:***@host/x",
    "https://me:SEC%2FRET@host/x": "https://me:***@host/x",
    "https://me:SEC#RET@host/x": "https://me:***@host/x",
    "https://me:SEC?RET@host/x": "https://me:***@host/x",
    "postgresql://me:SEC:RET@host:5432/db": "postgresql://me:***@host:5432/db",
    "postgresql+psycopg://me:1234/5SECRET@host/db": "postgresql+psycopg://me:***@host/db",
    "mysql+pymysql://root:SECRET@127.0.0.1/db": "mysql+pymysql://root:***@127.0.0.1/db",
    "https://SECRET@host/mlflow": "https://***@host/mlflow",
    "https://:SECRET@host": "https://:***@host",
    "https://SECRET0token123:x-oauth-basic@github.com/a": "https://***:***@github.com/a",
    "git+https://SECRET@github.com/a/b@v1.0": "git+https://***@github.com/a/b@v1.0",
    "https://host/x?token=SECRET": "https://host/x?token=***",
    "https://host/x?a=1&password=SECRET&b=2": "https://host/x?a=1&password=***&b=2",
    "https://host/x?access_token=SECRET#part": "https://host/x?access_token=***#part",
    "https://host/#access_token=SECRET&state=5": "https://host/#access_token=***&state=5",
    "https://a.blob/x?sv=2022&sig=SECRET%2Fx%3D&se=9": "https://a.blob/x?sv=2022&sig=***&se=9",
    "https://s3/x?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET": "https://s3/x?X-Amz-Credential=***&X-Amz-Signature=***",
    "https://host/?next=https://me:SECRET@other/x": "https://host/?next=https://me:***@other/x",
    "postgresql://host/db?user=me&password=SECRET": "postgresql://host/db?user=me&password=***",
    "mssql+pyodbc://sa:SE#CRET@server/db?driver=x": "mssql+pyodbc://sa:***@server/db?driver=x",
}

NAMED = {
    "Authorization: Bearer SECRET": "Authorization: Bearer ***",
    "authorization: Basic U0VDUkVU": "authorization: Basic ***",
    "{'Authorization': 'Bearer SECRET'}": "{'Authorization': 'Bearer ***'}",
    "got bearer SECRET.123456 instead": "got bearer *** instead",
    "X-Api-Key: SECRET": "X-Api-Key: ***",
    "Cookie: session=SECRET; id=SECRET": "Cookie: ***",
    '{"password": "SECRET", "user": "me"}': '{"password": "***", "user": "me"}',
    "password=SECRET user=me": "password=*** user=me",
    "Server=x;User Id=sa;Pwd=SECRET;": "Server=x;User Id=sa;Pwd=***;",
    "AccountName=x;AccountKey=SECRET==;": "AccountName=x;AccountKey=***;",
    "MLFLOW_TRACKING_PASSWORD=SECRET": "MLFLOW_TRACKING_PASSWORD=***",
    "AWS_SECRET_ACCESS_KEY=SECRET/K7MDENG": "AWS_SECRET_ACCESS_KEY=***",
    "HF_TOKEN=SECRET": "HF_TOKEN=***",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "WANDB_API_KEY=***",
    "client_secret: SECRET": "client_secret: ***",
    "python train.py --token SECRET --updates 5": "python train.py --token *** --updates 5",
    "train.py --api-key=SECRET": "train.py --api-key=***",
    "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----": "***",
}

READABLE = [
    "3e46de1a1b2c3d4e5f60718293a4b5c6d7e8f901",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "sha256 e3b0c44298fc… then, 9f86d081884c… now",
    "20261121-0930-1a2b",
    "runs/agnews/20261121-093000-1a2b/checkpoints/update-100",
    "123e4567-e89b-12d3-a456-426614174000",
    "4f1d2a9c0b8e4d5f8a7b6c5d4e3f2a1b",
    "sqlite:////home/me/runs/mlflow.db",
    "http://mlflow:5000/#/experiments/1/runs/4f1d2a9c0b8e4d5f8a7b6c5d4e3f2a1b",
    "http://host:5000/p@th",
    "http://[::1]:5000/x",
    "models:/agnews@champion",
    "databricks://team",
    "ssh://git@github.com/me/repo.git",
    "s3://bucket/folder/part@2",
    "sentence-transformers/all-MiniLM-L6-v2",
    "C:\\Users\\me\\runs",
    "max_tokens: 128, tokens=512, num_tokens: 7, tokenizer=bert, token_type_ids: 3",
    "pad_token: [PAD] eos_token=</s> unk-token: x",
    "unexpected token: 17",
    "scikit-learn's sk-learn style, task-specific-head-with-layers, disk-cache",
    "model.layers.0.self_attn.q_proj.weight",
    "the bearer of this",
    "me@firm.com",
    "data.text: there is no column 'title'. Did you mean 'titel'?",
    "optimizer.adamw.learning_rate=3e-5",
]


PROSE = [
    "password: is missing",
    "the password: the server wants one",
    "password: missing. Set MLFLOW_TRACKING_PASSWORD",
    "wandb.api_key: must be set",
    "secret: not given",
    "credentials: none found",
    "Authorization: required, see the docs",
    "authorization: token is missing",
    "Authorization: Basic auth failed",
    "label cookie: 12 rows",
    "labels: film 3, cookie: 7, token: 9",
    "cookie: chocolate",
    "next token: the",
    "next token: 'the'",
    "unexpected token: 'film'",
    "an access token: see https://host/docs",
    "token: null, password=None, api_key: null",
    "password is required, --password is an option, give --token to log in",
    "the bearer instrument. It is old",
    "    token = self.tokens[0]",
    "    password = input('who? ')",
]

WEAK = {
    "password: hunter": "password: ***",
    "password: hunter user: me": "password: *** user: me",
    "password: swordfish for me": "password: *** for me",
    "password=is": "password=***",
    "password: 'the'": "password: '***'",
    "password:the": "password:***",
    "client_secret: opensesame": "client_secret: ***",
    "api_key: abcdef": "api_key: ***",
    "HF_TOKEN: abcdefgh": "HF_TOKEN: ***",
    "access_token: abcdefgh": "access_token: ***",
    "token: Ab9dEf": "token: ***",
    "token: qwertyuiopasdf": "token: ***",
    "invalid token: abc123def": "invalid token: ***",
    "next token: abc123def456": "next token: ***",
    "new token: Secret": "new token: ***",
    "cookie: 8f3c0a": "cookie: ***",
    "cookie: theme=dark; session=SECRET": "cookie: ***",
    "train.py --password hunter": "train.py --password ***",
    "got bearer abc.SECRET": "got bearer ***",
    "password = hunter": "password = ***",
    "password=hunter(2)": "password=***(2)",
    "token = abc": "token = ***",
}


@pytest.mark.parametrize("text", PROSE)
def test_prose_behind_the_name_of_a_secret_keeps_its_words(text: str) -> None:
    assert redact(text) == text
    assert redact(f"{text}\n{text}") == f"{text}\n{text}"


@pytest.mark.parametrize(("text", "shown"), WEAK.items())
def test_a_weak_secret_is_left_out_too(text: str, shown: str) -> None:
    assert redact(text) == redact(shown) == shown


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_known_by_its_shape_wherever_it_stands(token: str) -> None:
    assert redact(token) == "***"
    for around in ("refused ({}).", "'{}'", "key {}, see https://host", "a\n{}\nb", "models/{}/x"):
        assert redact(around.format(token)) == around.format("***")
    assert redact(f"https://{token}@host/x") == "https://***@host/x"
    assert token not in redact(f"https://{token}:x@host/x")
    assert token not in redact(f"https://host/{token}/x?y={token}")


@pytest.mark.parametrize(("text", "shown"), [*ADDRESSES.items(), *NAMED.items()])
def test_what_stands_in_an_address_or_under_a_name_is_left_out(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(f"cannot reach {text}\nnow") == f"cannot reach {shown}\nnow"


@pytest.mark.parametrize("text", READABLE)
def test_hashes_ids_paths_and_settings_stay(text: str) -> None:
    assert redact(text) == text
    assert redact(f"{text}, {text}") == f"{text}, {text}"


def test_a_second_time_changes_nothing() -> None:
    for text in (*TOKENS, *ADDRESSES, *NAMED, *READABLE):
        assert redact(redact(text)) == redact(text)


@given(st.text(alphabet="ab1:/@?#=&-_. ;'\"token*", max_size=40))
def test_any_text_is_settled_after_one_time(text: str) -> None:
    assert redact(redact(f"x://{text}")) == redact(f"x://{text}")


@given(st.text(alphabet="abc:/@1._-", min_size=1, max_size=12).filter(lambda text: not text.startswith("/")))
def test_no_password_with_a_mark_of_its_own_is_seen(password: str) -> None:
    secret = f"q{password}Z"
    assert secret not in redact(f"postgresql://user:{secret}@host/db")
    assert "Z" not in redact(f"postgresql://user:{secret}@host/db")


def test_nested_values_go_by_their_names_and_keep_their_kinds() -> None:
    given = {
        "api_key": "SECRET",
        "headers": {"Authorization": "SECRET", "accept": "x"},
        "list": ["https://SECRET@host", 3, None, (1.5, "--password SECRET")],
        "max_tokens": 5,
        "token": 5,
        "password": "",
        "tokenizer": "bert",
    }
    assert redacted(given) == {
        "api_key": "***",
        "headers": {"Authorization": "***", "accept": "x"},
        "list": ["https://***@host", 3, None, (1.5, "--password ***")],
        "max_tokens": 5,
        "token": 5,
        "password": "",
        "tokenizer": "bert",
    }
    assert given["api_key"] == "SECRET"


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a_" * 100_000, "token" * 40_000, "://" * 60_000, "a:b " * 50_000]
)
def test_a_long_text_without_secrets_stays(text: str) -> None:
    assert redact(text) == text  # patterns that look back would take hours here


def test_no_outlet_of_a_run_shows_a_secret(tmp_path, capsys) -> None:
    from snugfit.cli.common.output import refuse, show

    secrets = {"note": f"https://me:SEC@RET@host failed with {TOKENS[0]}", "headers": {"X-Api-Key": "SECRET"}}
    seen: list[dict] = []
    events = Events(RunFolder(tmp_path), seen.append)
    events("warning", message=secrets["note"], deep=[secrets])
    events.close()
    show(secrets, as_json=False)
    show(secrets, as_json=True)
    refuse("TrackingError", secrets["note"], 2, as_json=True)
    tree = {
        "task": "python",
        "model": "m:make",
        "data": {"train": "m:rows"},
        "track": {"uri": "https://host/?token=SECRET", "experiment": TOKENS[0]},
    }
    recipe = build(tree, (), Places(), folder=tmp_path, name="x")
    outlets = [
        (tmp_path / "events.jsonl").read_text(),
        json.dumps(seen),
        str(capsys.readouterr()),
        recipe.to_yaml(),
        json.dumps(recipe.as_dict()),
        escape(secrets["note"]),
        _text(secrets),
    ]
    for outlet in outlets:
        assert "***" in outlet
        assert not any(word in outlet for word in ("SEC", "RET@", TOKENS[0]))
    assert recipe.track.uri == "https://host/?token=SECRET", "the run itself still has it"
    assert read_events(tmp_path / "events.jsonl")[0]["event"] == "warning"


@pytest.mark.parametrize("secret", ["SEC/RET", "SEC?RET", "SEC#RET", "SEC@R[ET"])
def test_an_address_that_cannot_be_parsed_is_refused_without_its_password(secret: str) -> None:
    with pytest.raises(TrackingError, match="cannot be parsed.*%40") as raised:
        check_uri(f"https://me:{secret}@host:5000/x")
    assert "SE" not in str(raised.value)


def test_a_trackers_long_answer_is_cut_after_its_secrets_are_out() -> None:
    answer = reason(RuntimeError("x" * 290 + " " + TOKENS[0]))
    assert len(answer) <= 300 and "hf_" not in answer


def test_processes_of_a_run_get_the_whole_address_that_its_copy_of_the_recipe_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    whole = "https://me:SECRET@host"
    for uri, expected in ((whole, whole), ("https://host", None), (None, None)):
        tree = {"task": "python", "model": "m:make", "data": {"train": "m:rows"}, "track": {"uri": uri}}
        recipe = build(tree, (), Places(), folder=tmp_path, name="x")
        with launch._surroundings(tmp_path, recipe, RunFolder(tmp_path / "run")):
            assert os.environ.get("MLFLOW_TRACKING_URI") == expected
        assert "MLFLOW_TRACKING_URI" not in os.environ
    assert resolve_uri(redact(whole), tmp_path, environment={"MLFLOW_TRACKING_URI": whole}) == whole
