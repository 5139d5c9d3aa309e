"""Build a text classification corpus from the documentation strings of the Python standard library.

Every machine with CPython has these texts: the docstrings of the library's own source files, which are parsed and
never imported. The label is the part of the library a docstring documents, after the chapters of the Library
Reference (https://docs.python.org/3/library/). The corpus is made so that the score means something:

* the split is by module: a family of modules (`bdb` and `pdb`, say) is wholly on one side;
* module names are taken out of the texts, so a model cannot read the answer off `email` or `xml`;
* a text that occurs in two modules is left out, so no text is on both sides;
* no family gives more than `MAX_PER_FAMILY` examples, so `tkinter` alone does not decide the result.

    python corpus.py OUT_FOLDER

writes `train.csv` and `validation.csv` with the columns `label` and `text`.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import platform
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_CHARACTERS = 40
MAX_WORDS = 80
MAX_PER_FAMILY = 40
VALIDATION_SHARE = 0.25
MIN_EXAMPLES = 1000

# Chapters of the Library Reference, small neighbours joined. Between commas stands one family: modules that share code
# or text, which the split keeps together. Modules without a place here are left out: `encodings` because its
# docstrings are generated, `distutils` because it ended with Python 3.11, and a few that no chapter describes.
CHAPTERS: dict[str, str] = {
    "text and data formats": """
        string stringprep, re sre_compile sre_constants sre_parse, difflib, textwrap, codecs, email, json, mailbox,
        mailcap mimetypes, base64 quopri binhex uu, html _markupbase, xml, csv, configparser, netrc, plistlib,
        tomllib, xdrlib, gettext, locale""",
    "data types and numbers": """
        datetime _pydatetime _strptime, zoneinfo, calendar, collections _collections_abc, heapq bisect,
        weakref _weakrefset, types, copy, pprint reprlib, enum, graphlib, numbers, fractions, decimal _pydecimal,
        random, statistics, functools, operator""",
    "files and storage": """
        os posixpath ntpath genericpath nturl2path, pathlib, fileinput, stat, filecmp, tempfile, glob fnmatch,
        linecache, shutil, pickle copyreg pickletools, shelve, dbm, sqlite3, gzip bz2 lzma _compression compression,
        zipfile, tarfile, io _pyio""",
    "concurrency": """
        threading _threading_local, multiprocessing, concurrent, subprocess, sched, queue, signal, asyncio,
        selectors, contextvars""",
    "networking": """
        socket socketserver, ssl, webbrowser, wsgiref, urllib, http, ftplib, poplib, imaplib, smtplib smtpd, nntplib,
        telnetlib, uuid, xmlrpc, ipaddress, cgi cgitb, asynchat asyncore""",
    "development tools": """
        typing, pydoc, doctest, unittest, bdb pdb, timeit, trace, tracemalloc, profile cProfile pstats""",
    "language and runtime": """
        sysconfig, warnings, dataclasses, contextlib, abc _py_abc, traceback, inspect, site, zipimport, pkgutil,
        modulefinder, runpy, importlib imp, ast, symtable, tokenize token, pyclbr, py_compile compileall, dis opcode,
        code codeop, venv ensurepip, zipapp""",
    "user interfaces": """
        tkinter, turtle, curses, cmd, shlex, argparse, optparse, getopt, getpass, rlcompleter""",
}
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class Example:
    """One docstring: its chapter, the first module of its family, the dotted module it stands in, and its text."""

    label: str
    family: str
    module: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Examples by side of the split; no family is on both sides."""

    train: list[Example]
    validation: list[Example]


def build(stdlib: Path | None = None, seed: int = 0) -> Corpus:
    """Read the docstrings below `stdlib` (default: this interpreter's library) and split them by module.

    Raises:
        ValueError: fewer than `MIN_EXAMPLES` docstrings, as in an installation without library sources.
    """
    folder = stdlib or Path(sysconfig.get_paths()["stdlib"])
    examples = _capped(_without_shared_texts(list(_examples(folder))))
    if len(examples) < MIN_EXAMPLES:
        raise ValueError(
            f"{folder} gives {len(examples)} documentation strings, and the corpus needs {MIN_EXAMPLES}: the sources "
            "(.py files) of the standard library are missing. Use a Python installation that has them."
        )
    held_out = _validation_families(examples, seed)
    return Corpus(
        train=[example for example in examples if example.family not in held_out],
        validation=[example for example in examples if example.family in held_out],
    )


def write(corpus: Corpus, folder: Path) -> tuple[Path, Path]:
    """Write `train.csv` and `validation.csv` into `folder`, which is made when it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.csv", folder / "validation.csv"
    for path, examples in zip(paths, (corpus.train, corpus.validation), strict=True):
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["label", "text"])
            rows.writerows((example.label, example.text) for example in examples)
    return paths


def normalised(text: str) -> str:
    """Return the text as compared for duplicates: lower case, letters and digits only, single spaces."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def families() -> Iterator[tuple[str, str, list[str]]]:
    """Chapter, family name and top-level modules of every family, in the table's order."""
    for chapter, rows in CHAPTERS.items():
        for row in rows.split(","):
            modules = row.split()
            yield chapter, modules[0], modules


def without_names(text: str, names: set[str]) -> str:
    """Remove `names` from `text` where they stand as a word or as a part of an identifier, in any case.

    >>> without_names("Open a TarFile with tarfile.open, see tarfile_path or HTTPServer; a retarfiled word.",
    ...               {"tarfile", "http", "re"})
    'Open a with open, see path or Server; a retarfiled word.'
    """
    # A part of an identifier ends at an underscore, a digit or a change of case (`tarFile`, `URLError`, but `MROs` is
    # a plural); the plural of a name counts as the name.
    alternatives = "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name)))
    start = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2}))"
    name = re.compile(rf"{start}(?i:{alternatives})[sS]?(?![a-z])(?:\.(?=\w)|_)?")
    remaining = name.sub(" ", text)
    while remaining != text:  # `JSONEncoder`: what follows a name is a word of its own once the name is gone
        text, remaining = remaining, name.sub(" ", remaining)
    return " ".join(text.split())


def _examples(folder: Path) -> Iterator[Example]:
    public = {module.strip("_") for _, _, modules in families() for module in modules}
    for chapter, family, modules in families():
        for path, module in _sources(folder, modules):
            own = {part.strip("_") for part in module.split(".")} - {""}
            for docstring in _docstrings(path):
                words = without_names(docstring, public | own).split()
                text = " ".join(words[:MAX_WORDS])
                if len(text) >= MIN_CHARACTERS:
                    yield Example(chapter, family, module, text)


def _sources(folder: Path, modules: list[str]) -> Iterator[tuple[Path, str]]:
    for name in modules:
        candidates = [folder / f"{name}.py", *sorted((folder / name).rglob("*.py"))]
        for path in candidates:
            parts = path.relative_to(folder).with_suffix("").parts
            if path.is_file() and not SKIPPED_FOLDERS.intersection(parts):
                yield path, ".".join(part for part in parts if part != "__init__")


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the library's own docstrings
        tree = ast.parse(path.read_bytes(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) >= MIN_CHARACTERS:
                yield docstring


def _without_shared_texts(examples: list[Example]) -> list[Example]:
    """Return each text once; a text that several families share says nothing about either, and goes."""
    owners: dict[str, set[str]] = {}
    for example in examples:
        owners.setdefault(normalised(example.text), set()).add(example.family)
    kept = {normalised(example.text): example for example in reversed(examples)}
    return [example for key, example in reversed(kept.items()) if len(owners[key]) == 1]


def _capped(examples: list[Example]) -> list[Example]:
    """At most `MAX_PER_FAMILY` examples of a family, evenly spaced over its sources."""
    by_family: dict[str, list[Example]] = {}
    for example in examples:
        by_family.setdefault(example.family, []).append(example)
    capped: list[Example] = []
    for members in by_family.values():
        count = min(len(members), MAX_PER_FAMILY)
        capped += [members[index * len(members) // count] for index in range(count)]
    return capped


def _validation_families(examples: list[Example], seed: int) -> set[str]:
    """Families for validation: in each chapter in the order of a hash, while they fit in `VALIDATION_SHARE`."""
    sizes = Counter(example.family for example in examples)
    held_out: set[str] = set()
    for chapter in CHAPTERS:
        members = sorted({example.family for example in examples if example.label == chapter})
        members.sort(key=lambda family: hashlib.sha256(f"{seed}/{family}".encode()).hexdigest())
        room = VALIDATION_SHARE * sum(sizes[family] for family in members)
        for family in members:
            if sizes[family] <= room:
                held_out.add(family)
                room -= sizes[family]
    return held_out


def describe(corpus: Corpus) -> str:
    """Count by class and the modules held out, as lines for a terminal."""
    train = Counter(example.label for example in corpus.train)
    validation = Counter(example.label for example in corpus.validation)
    lines = [f"{'':24}{'train':>8}{'validation':>12}"]
    lines += [f"{chapter:24}{train[chapter]:>8}{validation[chapter]:>12}" for chapter in CHAPTERS]
    lines.append(f"{'total':24}{train.total():>8}{validation.total():>12}")
    held_out = sorted({example.family for example in corpus.validation})
    lines.append(f"modules for validation only: {', '.join(held_out)}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Build a corpus from the standard library's documentation strings."
    )
    parser.add_argument("folder", type=Path, help="where train.csv and validation.csv are written")
    options = parser.parse_args(arguments)
    try:
        corpus = build()
        train, validation = write(corpus, options.folder)
    except (ValueError, OSError) as error:
        print(f"corpus: {error}", file=sys.stderr)
        return 2
    print(f"Documentation strings of the Python {platform.python_version()} standard library")
    print(describe(corpus))
    print(f"written: {train}, {validation}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
