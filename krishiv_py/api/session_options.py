"""The options that a session is started with: the steps of its builder, and options of object stores under their usual names.

Those are the names that delta-rs, Polars and the AWS tools have; they become settings of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs
from typing_extensions import Self

from krishiv_py.errors import PlanError, shown
from krishiv_py.failures.redaction import shown_settings, shown_text
from krishiv_py.plan.checks import ENGINES, PROFILES, Setting, a_number, a_text, one_of, setting
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.options.watermarks import CLOCKS, RowsClock
from krishiv_py.storage.files import says_where
from krishiv_py.storage.stores.google import ANONYMOUS, KEY_FILE

MOST_WORKERS: Final = 1_024
MOST_LOOKUP_RESULTS: Final = 1_000_000
"""So many results that have left may stay in memory for lookups."""


EngineName: TypeAlias = Literal["spark", "in-process"]


DurabilityProfile: TypeAlias = Literal["dev-local", "single-node-durable", "distributed-durable"]


@attrs.frozen
class SessionOptions:
    """The settings of a session; every step returns a new value. Base of :class:`krishiv_py.SessionBuilder`."""

    _master: str | None = attrs.field(default=None, repr=shown_text)
    _app: str | None = None
    _settings: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=shown_settings)
    _profile: str = "dev-local"
    _engine: str = "spark"
    _workers: int | None = None
    _lookup_results: int | None = attrs.field(default=None, repr=False)
    _retry_us: int | None = attrs.field(default=None, repr=False)
    _clock: RowsClock | None = attrs.field(default=None, repr=False)

    def engine(self, name: EngineName) -> Self:
        """Choose the engine by `name`: ``spark``, the default, or ``in-process``, this Python process (docs/in-process.md).

        In process there are no options of Spark's: a master, an application name, and settings other than how object stores
        and HDFS are reached.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.builder().engine("in-process").get_or_create() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        """
        one_of(name, "engine", ENGINES)
        return attrs.evolve(self, engine=name)

    def workers(self, count: int) -> Self:
        """Let a session in process run with `count` threads: 1 is the default, the number of cores the most that is of use.

        Raises
        ------
        PlanError
            For less than one, and more than 1 024.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.builder().engine("in-process").workers(2)
        SessionBuilder(..., _engine='in-process', _workers=2)
        """
        a_number(count, "workers", 1, "write .workers(2) for two threads", most=MOST_WORKERS)
        return attrs.evolve(self, workers=count)

    def lookup_results(self, count: int) -> Self:
        """Let each query of a session in process keep about `count` results in memory for ``lookup(last=...)``; 0 for none.

        Raises
        ------
        PlanError
            For less than none, and more than the 1 000 000 that are the default.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.builder().engine("in-process").lookup_results(0)
        SessionBuilder(..., _engine='in-process', _workers=None)
        """
        hint = "write .lookup_results(0) for none, or .lookup_results(10_000)"
        a_number(count, "lookup_results", 0, hint, most=MOST_LOOKUP_RESULTS)
        return attrs.evolve(self, lookup_results=count)

    def clock(self, clock: RowsClock) -> Self:
        """Choose the `clock` of rows where a watermark names none: the watermark of their ``"batch"``, or ``"row"`` by row.

        With ``"row"`` the results of a pipeline do not depend on how its rows are cut into batches (SEMANTICS §2.8).

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.builder().engine("in-process").clock("row").get_or_create() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     stream.watermark("at", "5 s")
        <TimedStream at; event time at, watermark max(event time of the rows before) - 5 s>
        """
        one_of(clock, "clock", CLOCKS)
        return attrs.evolve(self, clock=clock)

    def retry_for(self, limit: Duration) -> Self:
        """Try again for this `limit`, from the first failure, while something is away that a query needs: ``"1 min"``.

        That is a database, a broker, an object store, HDFS, a folder that is not mounted, or a checkpoint whose holder is
        ending. ``start()`` tries again, and so does a running query, with pauses that grow to 15 seconds; then the error
        has ``transient`` true. 0 ends at the first failure.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.builder().engine("in-process").retry_for("5 min")
        SessionBuilder(..., _engine='in-process', _workers=None)
        """
        return attrs.evolve(self, retry_us=to_us(limit, "limit", allow_zero=True))

    def master(self, url: str) -> Self:
        """Spark master `url`, ``local[*]`` by default."""
        return attrs.evolve(self, master=a_text(url, "master", 'write .master("local[2]")'))

    def app_name(self, name: str) -> Self:
        """Set the `name` shown by Spark."""
        return attrs.evolve(self, app=a_text(name, "name", 'write .app_name("flights")'))

    def config(self, key: str, value: Setting) -> Self:
        """Any Spark setting: `key` and `value`, as Spark's documentation has them.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.builder().config("spark.sql.shuffle.partitions", 8)
        SessionBuilder(..., _settings={'spark.sql.shuffle.partitions': '8'}, ...)
        """
        return attrs.evolve(self, settings=(*self._settings, setting(key, value)))

    def storage_options(self, options: Mapping[str, Setting]) -> Self:
        """Say how ``s3a://``, ``gs://`` and ``abfss://`` are reached; it becomes settings ``spark.hadoop.fs.…``.

        docs/object-stores.md has an example of each.

        Parameters
        ----------
        options : mapping of str
            ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``,
            ``AWS_VIRTUAL_HOSTED_STYLE_REQUEST``, ``AWS_ALLOW_HTTP``, ``AWS_SKIP_SIGNATURE``; for Google's store
            ``GOOGLE_SERVICE_ACCOUNT`` (the path of a key file, also called ``GOOGLE_APPLICATION_CREDENTIALS``),
            ``GOOGLE_SKIP_SIGNATURE``, ``GOOGLE_BASE_URL``; for Azure ``AZURE_STORAGE_ACCOUNT_KEY``, or
            ``AZURE_STORAGE_CLIENT_ID``, ``AZURE_STORAGE_CLIENT_SECRET`` and ``AZURE_STORAGE_TENANT_ID``, and
            ``AZURE_STORAGE_ENDPOINT`` of an emulator. Secrets are shown nowhere.

        Raises
        ------
        PlanError
            For other names, for half of a pair of keys, and for credentials in two ways.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.builder().storage_options({"AWS_REGION": "eu-central-1"})
        SessionBuilder(..., _settings={'spark.hadoop.fs.s3a.endpoint.region': 'eu-central-1'}, ...)
        """
        return attrs.evolve(self, settings=(*self._settings, *spark_settings(options)))

    def profile(self, name: DurabilityProfile) -> Self:
        """Durability profile by `name` (SEMANTICS §6.2)."""
        one_of(name, "profile", PROFILES)
        return attrs.evolve(self, profile=name)

    @property
    def _stores(self) -> dict[str, str]:
        """Settings for object stores and HDFS, under Hadoop's names.

        Raises
        ------
        PlanError
            For options that are Spark's.
        """
        of_spark = {".master": self._master, ".app_name": self._app}
        given = [name for name, value in of_spark.items() if value is not None]
        stores = {}
        for name, value in self._settings:
            own = name.removeprefix(HADOOP)
            if name.startswith(HADOOP) and says_where(own):
                stores[own] = value
            else:
                given.append(f".config({name!r})")
        if given:
            hint = 'leave it out, or write .engine("spark")'
            then = "nothing would follow them"
            raise PlanError("options of Spark for a session in process", got=", ".join(given), then=then, hint=hint)
        return stores


HADOOP: Final = "spark.hadoop."
"""Spark's names of Hadoop's settings begin so."""
_HADOOP: Final = "spark.hadoop.fs.s3a."
_TEXTS: Final[dict[str, str]] = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
    "AWS_REGION": "endpoint.region",
    "AWS_ENDPOINT_URL": "endpoint",
}
_SWITCHES: Final = ("AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_SKIP_SIGNATURE")
_GOOGLE: Final = "spark.hadoop.fs.gs."
_KEY_FILES: Final = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS")
_GOOGLE_NAMES: Final = (*_KEY_FILES, "GOOGLE_BASE_URL", "GOOGLE_SKIP_SIGNATURE")
_AZURE: Final = "spark.hadoop.fs.azure."
_AZURE_TEXTS: Final[dict[str, str]] = {
    "AZURE_STORAGE_ACCOUNT_KEY": "account.key",
    "AZURE_STORAGE_CLIENT_ID": "account.oauth2.client.id",
    "AZURE_STORAGE_CLIENT_SECRET": "account.oauth2.client.secret",
    "AZURE_STORAGE_TENANT_ID": "account.oauth2.client.endpoint",
    "AZURE_STORAGE_ENDPOINT": "endpoint",
}
_SIGN_IN: Final = "https://login.microsoftonline.com/{}/oauth2/token"
_SIGNS_IN: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_APPLICATION: Final = ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID")
_PROVIDERS: Final = "org.apache.hadoop.fs.s3a."
_YES_OR_NO: Final = {"true": True, "1": True, "false": False, "0": False}


def spark_settings(options: object) -> tuple[tuple[str, str], ...]:
    """Return the settings of Spark's that say the same.

    Raises
    ------
    PlanError
        For a name or value that is none, and for half of a pair of keys.
    """
    if not isinstance(options, Mapping):
        hint = 'pass a dict: {"AWS_REGION": "eu-central-1"}'
        raise PlanError("`options` is not a dict", got=type(options).__name__, hint=hint)
    given = {name.upper(): value for name, value in (setting(name, each) for name, each in options.items())}
    for name in given:
        if name not in (*_TEXTS, *_SWITCHES, *_GOOGLE_NAMES, *_AZURE_TEXTS):
            raise PlanError(
                "no such option of a store",
                got=shown(name),
                hint=f"use {', '.join([*_TEXTS, *_SWITCHES, *_GOOGLE_NAMES, *_AZURE_TEXTS])}, or .config() with a setting "
                "of Hadoop's: spark.hadoop.fs.s3a.…, spark.hadoop.fs.gs.… or spark.hadoop.fs.azure.…",
            )
    if ("AWS_ACCESS_KEY_ID" in given) != ("AWS_SECRET_ACCESS_KEY" in given):
        got = "AWS_ACCESS_KEY_ID" if "AWS_ACCESS_KEY_ID" in given else "AWS_SECRET_ACCESS_KEY"
        raise PlanError("half of a pair of keys", got=got, hint="pass both, or neither")
    settings = {_TEXTS[name]: value for name, value in given.items() if name in _TEXTS}
    s3 = tuple((_HADOOP + name, value) for name, value in {**settings, **_switched(given)}.items())
    others = {_GOOGLE + name: value for name, value in _google(given).items()}
    others |= {_AZURE + name: value for name, value in _azure(given).items()}
    return (*s3, *others.items())


def _azure(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which Azure is reached."""
    settings = {setting: given[name] for name, setting in _AZURE_TEXTS.items() if name in given}
    named = [name for name in _APPLICATION if name in given]
    if named and "account.key" in settings:
        raise PlanError(
            "credentials for Azure are given in two ways",
            got=", ".join(["AZURE_STORAGE_ACCOUNT_KEY", *named]),
            hint="pass the key of the account, or the three values of an application",
        )
    if named and len(named) < len(_APPLICATION):
        hint = f"pass {', '.join(_APPLICATION)}"
        raise PlanError("an application of Azure lacks a value", got=", ".join(named), hint=hint)
    if named:
        settings["account.oauth2.client.endpoint"] = _SIGN_IN.format(given["AZURE_STORAGE_TENANT_ID"])
        settings |= {"account.auth.type": "OAuth", "account.oauth.provider.type": _SIGNS_IN}
    elif "account.key" in settings:
        settings["account.auth.type"] = "SharedKey"
    return settings


def _google(given: Mapping[str, str]) -> dict[str, str]:
    """Return what reaches Google's store."""
    settings: dict[str, str] = {}
    if "GOOGLE_BASE_URL" in given:
        settings["storage.root.url"] = given["GOOGLE_BASE_URL"]
    key_files = {given[name] for name in _KEY_FILES if name in given}
    anonymous = _switch(given, "GOOGLE_SKIP_SIGNATURE")
    if len(key_files) > 1 or (key_files and anonymous):
        raise PlanError(
            "credentials for Google's store are given in two ways",
            got=", ".join(name for name in _GOOGLE_NAMES if name in given and name != "GOOGLE_BASE_URL"),
            hint="pass GOOGLE_SERVICE_ACCOUNT, the path of a key file, or GOOGLE_SKIP_SIGNATURE",
        )
    if key_files:
        [key_file] = key_files
        if key_file.lstrip().startswith("{"):
            then = "Spark's connector reads keys from files"
            hint = "write it into a file that every machine has, and pass the path"
            raise PlanError("a key is where the path of its file belongs", got="[redacted]", then=then, hint=hint)
        settings |= {"auth.type": KEY_FILE, "auth.service.account.json.keyfile": key_file}
    elif anonymous:
        settings["auth.type"] = ANONYMOUS
    return settings


def _switched(given: Mapping[str, str]) -> dict[str, str]:
    """Return what the switches say, and what follows from an endpoint and from keys."""
    settings: dict[str, str] = {}
    endpoint = given.get("AWS_ENDPOINT_URL", "")
    http = _switch(given, "AWS_ALLOW_HTTP")
    if endpoint.startswith("http://"):
        if http is False:
            hint = "write https://, or AWS_ALLOW_HTTP true"
            raise PlanError("the endpoint is not encrypted", got=endpoint, then="AWS_ALLOW_HTTP is false", hint=hint)
        settings["connection.ssl.enabled"] = "false"
    virtual = _switch(given, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    if virtual is not None or endpoint:
        settings["path.style.access"] = "false" if virtual else "true"
    if "AWS_ACCESS_KEY_ID" in given:
        kind = "TemporaryAWSCredentialsProvider" if "AWS_SESSION_TOKEN" in given else "SimpleAWSCredentialsProvider"
        settings["aws.credentials.provider"] = _PROVIDERS + kind
    elif _switch(given, "AWS_SKIP_SIGNATURE"):
        settings["aws.credentials.provider"] = _PROVIDERS + "AnonymousAWSCredentialsProvider"
    return settings


def _switch(given: Mapping[str, str], name: str) -> bool | None:
    if name not in given:
        return None
    if given[name].lower() not in _YES_OR_NO:
        raise PlanError(f"{name} is neither true nor false", got=given[name], hint="write true")
    return _YES_OR_NO[given[name].lower()]
