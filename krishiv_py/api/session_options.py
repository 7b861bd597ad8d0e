"""The options that a session is started with: the steps of its builder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs
from typing_extensions import Self

from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import ENGINES, PROFILES, Setting, a_number, a_text, one_of, setting
from krishiv_py.redaction import shown_settings, shown_text
from krishiv_py.storage.files import says_where
from krishiv_py.storage.stores.options import HADOOP, spark_settings

MOST_WORKERS: Final = 1_024


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
            raise PlanError(
                "options of Spark for a session in process", got=", ".join(given), then="nothing would follow them", hint=hint
            )
        return stores
