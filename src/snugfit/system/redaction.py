"""Secrets left out of text: passwords in addresses, values by the name they stand under, tokens by their shape.

Everything that leaves the process as text goes through here: events (and so reports and trackers), messages, tracebacks of commands,
copies of recipes. Nothing is guessed from randomness alone, so hashes, run ids, UUIDs and paths stay as they are. Behind `password: `
stands a value or a sentence goes on: common words of English are taken for prose.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>[^\s\"'<>`]+)", re.IGNORECASE)
_PORT = re.compile(r"\d{0,5}")

_WORDS = (
    r"password|passwd|passphrase|pwd|secret|credentials?|authorization|(?:api|access|account|private|secret|shared|encryption|auth)[_-]?key"
    r"|x-amz-(?:signature|security-token)|cookie"
)
_TOKENIZERS = r"(?:pad|eos|bos|cls|sep|mask|unk|special|image|audio|video|start|end|stop|next|new|first|last|per|max|num|min)"
"""Before `token` these make a word of tokenizers, not a secret."""
_NAME = (
    rf"(?:[\w.-]{{0,60}}?(?:{_WORDS})|(?!{_TOKENIZERS}[_-]?token)(?:[\w.-]{{0,60}}[_.-])?[a-z]{{0,20}}token)"
)
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"'<>(){}\[\]]+)"
_NAMED = re.compile(
    rf"(?P<name>(?<![\w.-]){_NAME}[\"']?\s*(?P<sign>[=:])\s*)"
    rf"(?P<scheme>[\"']?(?:bearer|basic|token|digest|apikey)\s+)?(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_OPTION = re.compile(rf"(?P<name>(?<![\w-])--{_NAME}\s+)(?P<value>(?!-){_VALUE})", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<name>[?&#;](?:[\w.-]{0,60}token|key|auth|sig|signature|sas|jwt)=)[^\s&#;\"'<>]+", re.IGNORECASE
)
_COOKIES = re.compile(r"(?P<name>\b(?:set-)?cookie:\s*)[^\s=;,\"']+=[^\n\"']*", re.IGNORECASE)

_SHAPES = re.compile(
    r"""
      -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?<![A-Za-z0-9])(?:
        hf_[A-Za-z0-9]{16,}
      | api_org_[A-Za-z0-9]{16,}
      | (?:sk|pk|rk)-[A-Za-z0-9_-]{20,}
      | [spr]k_(?:live|test)_[A-Za-z0-9]{10,}
      | gh[pousr]_[A-Za-z0-9]{16,}
      | github_pat_[A-Za-z0-9_]{16,}
      | glpat-[A-Za-z0-9_-]{16,}
      | (?:AKIA|ASIA)[A-Z0-9]{16}
      | dapi[0-9a-f]{16,}(?:-\d+)?
      | xox[abeprs]-[A-Za-z0-9-]{10,}
      | AIza[A-Za-z0-9_-]{30,}
      | ya29\.[A-Za-z0-9_-]{16,}
      | npm_[A-Za-z0-9]{30,}
      | pypi-[A-Za-z0-9_-]{30,}
      | hvs\.[A-Za-z0-9_-]{20,}
      | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
      | wandb_v1_[A-Za-z0-9_]{16,}
      | eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_BEARER = re.compile(
    r"(?P<name>\bbearer\s+)(?=\S*(?:\d|[._~+/=-][A-Z]))[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE
)
_SECRET_NAME = re.compile(rf"(?:{_NAME})", re.IGNORECASE)
_FEW_DIGITS = re.compile(r"[\d.,]{1,6}")

_NOTHING = re.compile(r"none|null|true|false", re.IGNORECASE)
_PROSE = re.compile(
    r"a|access|after|again|all|allowed|an|and|any|are|as|at|auth|authentication|bad|be|because|been|before|but|by|can|cannot"
    r"|check|contains|correct|could|denied|did|do|does|empty|enter|error|expected|expired|failed|failure|fails|for|found|from"
    r"|given|got|had|has|have|how|if|in|incorrect|invalid|is|it|its|looks|lost|malformed|may|missing|must|needed|needs"
    r"|neither|never|no|not|nothing|of|on|only|optional|or|ours|please|rejected|required|revoked|see|set|should|show|stands"
    r"|than|that|the|their|there|these|they|this|those|to|too|try|two|undefined|unknown|unset|until|use|used|using|valid"
    r"|value|was|we|were|what|when|where|which|while|who|will|with|without|word|words|would|wrong|you|your",
    re.IGNORECASE,
)
"""What sentences go on with behind a secret's name; none of it is a secret that anybody could not guess."""

_WORD = re.compile(r"[a-z]{1,10}")
_NO_SECRETS = ("token", "cookie")
"""Names that are words of texts too. What stands under them as a secret is no short word in lower case."""
_OF_TOKENIZER = re.compile(rf"\b(?:unexpected|(?!new){_TOKENIZERS})\s$", re.IGNORECASE)


def redact(text: str) -> str:
    """Return a text without its secrets; a second call changes nothing.

    >>> redact("https://me:secret@host/mlflow?token=abc")
    'https://me:***@host/mlflow?token=***'
    >>> redact("Authorization: Bearer abc.def, run 20261121-0930-1a2b")
    'Authorization: Bearer ***, run 20261121-0930-1a2b'
    """
    if len(text) < 16 and text.isalnum():  # most names and kinds of events
        return text
    if "://" in text:
        text = _ADDRESS.sub(_without_userinfo, text)
    text = _SHAPES.sub(HIDDEN, text)
    if "=" in text or ":" in text:
        text = _COOKIES.sub(rf"\g<name>{HIDDEN}", text)
        text = _QUERY.sub(rf"\g<name>{HIDDEN}", text)
        text = _NAMED.sub(_without_value, text)
    if "--" in text:
        text = _OPTION.sub(_without_argument, text)
    return _BEARER.sub(rf"\g<name>{HIDDEN}", text)


_NUMBERS = frozenset({float, int, bool, type(None)})
"""Types that hold no text: most of what an update's event is made of."""


def is_of_numbers(values: Mapping[str, Any]) -> bool:
    """Return whether there are numbers alone in values, or in mappings that they hold: no secret can be among them.

    >>> is_of_numbers({"update": 1, "metrics": {"loss": 0.5}}), is_of_numbers({"update": 1, "name": "a"})
    (True, False)
    """
    for value in values.values():
        if type(value) not in _NUMBERS and not (
            type(value) is dict and _NUMBERS.issuperset(map(type, value.values()))
        ):
            return False
    return True


def redacted(value: Any) -> Any:
    """Return nested plain values without their secrets: texts under a secret's name, and secrets in any text.

    >>> redacted({"track": {"uri": "https://abc@host"}, "api_key": "abc", "max_tokens": 5})
    {'track': {'uri': 'https://***@host'}, 'api_key': '***', 'max_tokens': 5}
    """
    if isinstance(value, str):
        return redact(value)
    if type(value) is dict or isinstance(value, Mapping):
        return {
            key: inner
            if type(inner) in _NUMBERS
            else HIDDEN
            if isinstance(inner, str) and inner and _is_secret(key)
            else redacted(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [redacted(inner) for inner in value]
    return tuple(redacted(inner) for inner in value) if type(value) is tuple else value


@functools.lru_cache(1024)
def _is_secret(name: Any) -> bool:
    return isinstance(name, str) and _SECRET_NAME.fullmatch(name) is not None


def _without_userinfo(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    at = _end_of_userinfo(scheme.lower(), rest)
    userinfo, rest = (rest[:at], rest[at:]) if at >= 0 else ("", rest)
    if "://" in rest:  # an address in the query of another one
        rest = _ADDRESS.sub(_without_userinfo, rest)
    name, colon, _ = userinfo.partition(":")
    if colon:
        userinfo = f"{HIDDEN if _is_token(name) else name}:{HIDDEN}"
    elif userinfo and (scheme.lower().endswith(("http", "https")) or _is_token(userinfo)):
        userinfo = HIDDEN  # http has no users without a password: it is a token
    return f"{scheme}://{userinfo}{rest}"


def _end_of_userinfo(scheme: str, rest: str) -> int:
    """Return where the `@` behind the userinfo stands, -1 without one.

    A password may hold `@`, `/`, `?` and `#` as they are, which no parser of addresses takes for a password.
    """
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    head, colon, tail = authority.partition(":")
    if "@" in authority:
        at = authority.rindex("@")
        return max(at, re.split(r"[?]", rest, maxsplit=1)[0].rfind("@")) if ":" in authority[:at] else at
    of_web = scheme.endswith(("http", "https")) or "." in head or not tail
    is_host = of_web and _PORT.fullmatch(tail) is not None
    return -1 if not colon or is_host or authority.startswith("[") else rest.rfind("@")


def _is_token(name: str) -> bool:
    return (len(name) >= 12 and any(character.isdigit() for character in name)) or _SHAPES.match(
        name
    ) is not None


_CODE = re.compile(r" = [A-Za-z_][A-Za-z_.]*[(\[]")
"""A line of a traceback that makes a value, such as `token = self.tokens[0]`."""


def _is_prose(word: str, name: str, value: str) -> bool:
    """Return whether a sentence goes on behind a secret's name, or the value is none.

    Args:
        word: the name in lower case, `name`: with the sign and the space behind it.
    """
    plain = value.rstrip(".!?:")
    if _NOTHING.fullmatch(plain):
        return True
    if not re.search(r":\s+$", name):
        return False
    of_text = word in _NO_SECRETS and (
        _WORD.fullmatch(plain) or (word == "cookie" and _FEW_DIGITS.fullmatch(plain))
    )
    return bool(of_text or _PROSE.fullmatch(plain))


def _of_tokenizer(before: str, value: str) -> bool:
    """Return whether what is said of a token is of a model's or a parser's: `next token: 'the'`."""
    return bool(_OF_TOKENIZER.search(before)) and _WORD.fullmatch(value.strip("\"'").lower()) is not None


def _without_argument(match: re.Match[str]) -> str:
    if _PROSE.fullmatch(match["value"].rstrip(".!?:")):
        return match[0]
    return f"{match['name']}{HIDDEN}"


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    if value.startswith(("//", HIDDEN)):
        return match[0]  # the name is an address's scheme, or the value is hidden already
    word = re.sub(r"[\"'\s=:]+$", "", match["name"]).lower()
    if word.endswith("token") and _FEW_DIGITS.fullmatch(value):
        return match[0]  # a count or an id of a tokenizer
    quote = value[0] if value[0] in "\"'" else ""
    if quote and len(value) == 2:
        return match[0]
    before = match.string[max(0, match.start() - 12) : match.start()]
    if _is_prose(word, match["name"], value) or (word == "token" and _of_tokenizer(before, value)):
        return match[0]
    if _CODE.fullmatch(match["name"][-3:] + value + match.string[match.end() : match.end() + 1]):
        return match[0]
    return f"{match['name']}{match['scheme'] or ''}{quote}{HIDDEN}{quote}"
