"""Secrets taken out of every text the library shows: plans, reprs, errors, HTML, logs, metric labels.

There is one function for texts, :func:`redacted`, and one for settings, :func:`shown_settings`; nothing else decides what is
secret. What a program passes on to Spark stays as it is: only texts for people are changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

HIDDEN: Final = "[redacted]"
"""The text in place of a secret."""

_NAMES: Final = (
    r"secret|key\.pem|oauthbearer\.config|auth\.user\.info|passw(?:or)?d|passphrase|pwd|token|credential|signature|jaas\.config"
    r"|(?:access|api|account|private|shared|master|encryption)[._-]?key"
)
_SECRET_NAME: Final = re.compile(rf"{_NAMES}|(?:^|[._-])(?:sig|sas|auth)$", re.IGNORECASE)
# bounded repetitions: a text may be long, and must not make this take longer than its length
_NAME: Final = rf"(?<![\w.-])[\w.-]{{0,80}}?(?:{_NAMES})[\w.-]{{0,80}}"
_CONTAINERS: Final = ("abfs", "abfss", "wasb", "wasbs")


def _no_user(match: re.Match[str]) -> str:
    """Return an address without user-info; ``abfss://container@account`` has none."""
    scheme, user = match.groups()
    return match[0] if scheme.lower() in _CONTAINERS and ":" not in user else f"{scheme}://{HIDDEN}@"


_RULES: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    # a key in PEM, whole or cut off, with its lines as they are or as \\n
    (
        re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:(?!-----)[\s\S]){0,20000}(?:-----END [A-Z0-9 ]{0,40}-----)?"),
        HIDDEN,
    ),
    # scheme://user:pass@word@host
    (re.compile(r"(?<![\w+.-])([\w+.-]{1,40})://([^\s/?#'\"]{1,2000})@"), _no_user),
    # an unencoded secret may hold slashes; host:8020/folder@x is a port and a path
    (re.compile(r"(\b(?:s3[an]?|gcs|gs|oss|cosn)://)[^\s/@:'\"]{1,500}:(?:(?!://)[^\s'\"]){1,2000}@", re.I), rf"\1{HIDDEN}@"),
    (re.compile(r"(://)[^\s/@:'\"]{1,500}:(?!\d{1,5}[/?#])(?:(?!://)[^\s'\"]){1,2000}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(\bjdbc:oracle:\w+:)[^\s/@]{1,500}/[^\s@]{1,500}@", re.I), rf"\1{HIDDEN}@"),
    (re.compile(r"(\bBearer\s+)[\w.~+/=-]{8,}", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"([?&;](?:sig|key|auth|code)=)[^&\s'\";]+", re.I), rf"\1{HIDDEN}"),
    # 'password': 'x', ("password", "x")
    (re.compile(rf"((['\"]){_NAME}\2\s*[:,=]\s*)(['\"])(?:(?!\3)[^\\]|\\.){{0,2000}}\3", re.I), rf"\1\3{HIDDEN}\3"),
    (re.compile(rf"({_NAME}=)(['\"])(?:(?!\2)[^\\]|\\.){{0,2000}}\2", re.I), rf"\1\2{HIDDEN}\2"),
    (re.compile(rf"({_NAME}=)(?!\[redacted\])[^&;,\s'\"()<>\[\]{{}}]+", re.I), rf"\1{HIDDEN}"),
)
_COMPARED: Final = r"(?!token\s+=)"
"""A column called `token` in an expression: ``token = 'x'``."""
_TYPE: Final = (
    r"(?:string|large_string|utf8|binary|bigint|u?int(?:8|16|32|64)?|integer|smallint|tinyint|float|double|halffloat|bool(?:ean)?"
    r"|decimal\w*|date(?:32|64)?|time\w*|timestamp\w*|duration|list|map|struct|array|null|nullable|none|true|false)\b"
)
_SPACED: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(
            r"(\b(?:proxy-)?authorization\b['\"]?\s{0,9}[:=]\s{0,9}['\"]?(?:(?:basic|bearer|digest|negotiate|token|apikey)\s{1,9})?)"
            r"(?!\[redacted\]|(?:basic|bearer|digest|negotiate|token|apikey)\b)[^\s'\"<>]{1,2000}",
            re.I,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(\bBasic\s{1,9})[A-Za-z0-9+/_-]{6,2000}={1,2}", re.I), rf"\1{HIDDEN}"),
    # password = 'x', password : "x"
    (
        re.compile(rf"({_COMPARED}{_NAME}\s{{0,9}}[:=]\s{{0,9}})(['\"])(?:(?!\2)[^\\]|\\.){{0,2000}}\2", re.I),
        rf"\1\2{HIDDEN}\2",
    ),
    # password = x, password: x; a name of a type is not a secret
    (
        re.compile(
            rf"({_COMPARED}{_NAME}\s{{0,9}}[:=]\s{{0,9}})(?!\[redacted\]|{_TYPE})[^&;,\s'\"()<>\[\]{{}}=:]"
            r"[^&;,\s'\"()<>\[\]{}]{0,2000}",
            re.I,
        ),
        rf"\1{HIDDEN}",
    ),
)
"""Secrets as people, headers and libpq write them, with spaces."""
_SIGNS: Final = re.compile("[:='\"]|earer|asic|-----begin", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return the `text` without user-info in addresses, secret query parameters and values of secret settings.

    Examples
    --------
    >>> redacted("parquet s3a://AKIA:se/cret@bucket/events (streaming)")
    'parquet s3a://[redacted]@bucket/events (streaming)'
    >>> redacted("https://host/x?sv=1&sig=abc%3D; password=hunter2; hdfs://nn:8020/a@b")
    'https://host/x?sv=1&sig=[redacted]; password=[redacted]; hdfs://nn:8020/a@b'
    >>> redacted("abfss://events@account.dfs.core.windows.net/in")
    'abfss://events@account.dfs.core.windows.net/in'
    """
    if _SIGNS.search(text) is None:
        return text
    text = _ruled(text)
    for pattern, instead in _SPACED:
        text = pattern.sub(instead, text)
    return text


def _ruled(text: str) -> str:
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


def is_secret(name: str) -> bool:
    """Return whether a setting of this `name` holds a secret, as by Spark's own ``spark.redaction.regex`` and a few names more.

    Examples
    --------
    >>> [is_secret(n) for n in ("spark.hadoop.fs.s3a.access.key", "sslPassword", "spark.sql.shuffle.partitions", "header")]
    [True, True, False, False]
    """
    return _SECRET_NAME.search(name) is not None


def shown_setting(name: str, value: object) -> str:
    """Return the `value` of a setting, for people.

    Examples
    --------
    >>> shown_setting("kafka.password", "hunter2"), shown_setting("header", "true")
    ('[redacted]', 'true')
    """
    return HIDDEN if is_secret(name) else redacted(str(value))


def shown_settings(settings: Mapping[str, object] | Iterable[tuple[str, object]]) -> str:
    """Settings as a repr has them.

    Examples
    --------
    >>> shown_settings([("header", "true"), ("password", "hunter2")])
    "{'header': 'true', 'password': '[redacted]'}"
    """
    pairs = settings.items() if isinstance(settings, Mapping) else settings
    return repr({name: shown_setting(name, value) for name, value in pairs})


def noted(text: str) -> str:
    """Return the `text` as a note that is kept and compared later: where a secret was taken out, a check sum distinguishes
    texts.

    Examples
    --------
    >>> noted("sum(amount)"), noted("url = 's3a://k:a@b'") == noted("url = 's3a://k:c@b'")
    ('sum(amount)', False)
    """
    shown = _ruled(text)  # by the rules under which kept notes were written
    return text if shown == text else f"{shown} #{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def shown_text(text: object) -> str:
    """Return the repr of a text or of another value, redacted: for fields of values that show themselves."""
    return redacted(repr(text))
