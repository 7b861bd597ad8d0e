"""Streams over files: what a session can read (docs/sources.md)."""

from __future__ import annotations

import os
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number, a_switch, one_of, setting
from krishiv_py.plan.names import encodable
from krishiv_py.plan.nodes import FileFormat, FileSource
from krishiv_py.plan.options.malformed import AfterRead, MissingColumns, Nanoseconds, OnMalformed
from krishiv_py.plan.schema import SchemaLike, as_schema
from krishiv_py.storage.files import arrow_reads, is_local_path
from krishiv_py.storage.folders import absolute
from krishiv_py.storage.listing import hidden

PathLike: TypeAlias = "str | os.PathLike[str]"
_SAME: Final = {"delimiter": "sep", "charset": "encoding"}
"""Options of CSV that have two names."""


class FileRunner(Runner, Protocol):
    """A runner that knows files."""

    def located(self, path: str, streaming: bool) -> tuple[str, bool]:
        """The path to read, and whether it names a folder or file as it is."""
        ...

    def infer(self, path: tuple[str, bool], kind: str, options: dict[str, str]) -> pa.Schema:
        """The schema of the files that are there."""
        ...


class FileSources:
    """The methods of a session that read files."""

    _runner: FileRunner

    def read_parquet(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        missing_columns: MissingColumns = "fail",
        nanoseconds: Nanoseconds = "fail",
        on_malformed: OnMalformed = "fail",
        after_read: AfterRead = "keep",
        archive: PathLike | None = None,
    ) -> Stream:
        """Parquet files at `path`, at any depth, read by Arrow; which files count is in docs/sources.md.

        Parameters
        ----------
        path : str or os.PathLike
            A folder, a file or a pattern.
        schema : pyarrow.Schema or StructType or str, optional
            Columns; by default read from the existing files.
        streaming : bool
            Also read files that come later; otherwise the existing files are a bounded stream.
        max_files_per_batch : int, optional
            The most files in one micro-batch; all existing files by default.
        missing_columns : {"fail", "null"}
            What to do if a file lacks a column that the query reads, or a field of a struct in it: refuse the file, or read
            the column or field as null.
        nanoseconds : {"fail", "cut"}
            What to do with times and durations that are finer than a microsecond: refuse the file, or cut them to
            microseconds, towards the past.
        on_malformed : {"fail", "side_output"}
            What to do with a file that cannot be read or does not fit: stop the query with an error that names it, or add
            it to the late rows with the reason ``malformed``.
        after_read : {"keep", "archive", "delete"}
            What to do with a file of a stream when the batch that read it is committed: leave it, move it into the folder
            `archive`, or remove it.
        archive : str or os.PathLike, optional
            The folder for ``after_read="archive"``, outside of `path` or hidden in it (``_archive``).

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.
        """
        one_of(missing_columns, "missing_columns", ("fail", "null"))
        one_of(nanoseconds, "nanoseconds", ("fail", "cut"))
        lenient, done = (missing_columns, nanoseconds), (after_read, archive)
        return self._files("parquet", path, schema, streaming, max_files_per_batch, {}, on_malformed, lenient, done)

    def read_json(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        after_read: AfterRead = "keep",
        archive: PathLike | None = None,
        **options: str,
    ) -> Stream:
        """Files of JSON lines at `path`, at any depth; which files count is in docs/sources.md.

        Parameters
        ----------
        path : str or os.PathLike
            A folder, a file or a pattern.
        schema : pyarrow.Schema or StructType or str, optional
            Columns; by default read from the existing files.
        streaming : bool
            Also read files that come later; otherwise the existing files are a bounded stream.
        max_files_per_batch : int, optional
            The most files in one micro-batch; all existing files by default.
        on_malformed : {"fail", "side_output"}
            What to do with a line that is not a row: stop the query with an error that names file, line and
            text, or add it to the late rows with the reason ``malformed``.
        after_read : {"keep", "archive", "delete"}
            What to do with a file of a stream when the batch that read it is committed: leave it, move it into the folder
            `archive`, or remove it.
        archive : str or os.PathLike, optional
            The folder for ``after_read="archive"``, outside of `path` or hidden in it (``_archive``).
        **options : str
            Options of Spark's reader.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.
        """
        done = after_read, archive
        return self._files("json", path, schema, streaming, max_files_per_batch, options, on_malformed, done=done)

    def read_csv(
        self,
        path: PathLike,
        schema: SchemaLike | Any = None,
        *,
        streaming: bool = False,
        max_files_per_batch: int | None = None,
        on_malformed: OnMalformed = "fail",
        after_read: AfterRead = "keep",
        archive: PathLike | None = None,
        **options: str,
    ) -> Stream:
        """CSV files at `path`, at any depth; which files count is in docs/sources.md.

        Parameters
        ----------
        path : str or os.PathLike
            A folder, a file or a pattern.
        schema : pyarrow.Schema or StructType or str, optional
            Columns; by default read from the existing files.
        streaming : bool
            Also read files that come later; otherwise the existing files are a bounded stream.
        max_files_per_batch : int, optional
            The most files in one micro-batch; all existing files by default.
        on_malformed : {"fail", "side_output"}
            What to do with a record that does not fit: stop the query with an error that names file, line and
            text, or add it to the late rows with the reason ``malformed``.
        after_read : {"keep", "archive", "delete"}
            What to do with a file of a stream when the batch that read it is committed: leave it, move it into the folder
            `archive`, or remove it.
        archive : str or os.PathLike, optional
            The folder for ``after_read="archive"``, outside of `path` or hidden in it (``_archive``).
        **options : str
            Options of Spark's reader, for instance ``header="true"``.

        Raises
        ------
        SourceError
            When no file or folder matches the path.
        PlanError
            For a number of files below 1, and for arguments of another type.
        """
        done = after_read, archive
        return self._files("csv", path, schema, streaming, max_files_per_batch, options, on_malformed, done=done)

    def _files(
        self,
        kind: FileFormat,
        path: PathLike,
        schema: SchemaLike | Any,
        streaming: bool,
        max_files: int | None,
        options: dict[str, str],
        on_malformed: OnMalformed,
        lenient: tuple[MissingColumns, Nanoseconds] = ("fail", "fail"),
        done: tuple[AfterRead, PathLike | None] = ("keep", None),
    ) -> Stream:
        name = checked_path(path)
        after_read, archive = _after_read(*done, name, streaming=streaming)
        a_switch(streaming, "streaming")
        one_of(on_malformed, "on_malformed", ("fail", "side_output"))
        if max_files is not None:
            a_number(max_files, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
        settings = dict(setting(k, v) for k, v in options.items())
        spelled = dict[str, str]()
        for taken in settings:
            if (other := spelled.setdefault(_SAME.get(taken.lower(), taken.lower()), taken)) != taken:
                raise PlanError(
                    "an option is given twice",
                    got=f"{other}={settings[other]!r} and {taken}={settings[taken]!r}",
                    hint=f"leave out {other} or {taken}: they are one option, whose name ignores case",
                )
            if taken.lower() in ("mode", "columnnameofcorruptrecord", "badrecordspath"):
                raise PlanError(
                    f"the option {taken!r} would drop input in silence",
                    got=settings[taken],
                    hint='use on_malformed="fail" or "side_output"',
                )
        columns = as_schema(schema) if schema is not None else None
        found = self._runner.located(name, streaming)
        columns = self._runner.infer(found, kind, settings) if columns is None else columns
        source = FileSource(
            found[0],
            kind,
            columns,
            bounded=not streaming,
            max_files_per_batch=max_files,
            options=tuple(sorted(settings.items())),
            literal=found[1],
            missing_columns=lenient[0],
            nanoseconds=lenient[1],
            on_malformed=on_malformed,
            after_read=after_read,
            archive=archive,
        )
        return Stream(source, columns, self._runner)


def _after_read(after_read: AfterRead, archive: PathLike | None, path: str, *, streaming: bool) -> tuple[AfterRead, str | None]:
    """Return what is done with files that were read."""
    one_of(after_read, "after_read", ("keep", "archive", "delete"))
    if (archive is None) == (after_read == "archive"):
        got = f"after_read={after_read!r}, archive={shown(archive)}"
        hint = 'pass after_read="archive" and archive="/a/folder", or neither'
        raise PlanError('`archive` is the folder of after_read="archive"', got=got, hint=hint)
    if after_read != "keep" and (not streaming or not arrow_reads(path)):
        elsewhere = path, "use s3a://, gs://, hdfs:// or a folder of this machine"
        got, hint = elsewhere if streaming else ("streaming=False", "pass streaming=True")
        what = "files are moved or removed only when a streaming query whose batches the library plans has read them"
        raise PlanError(what, got=got, then="they would stay where they are", hint=f"{hint}, or leave after_read out")
    if archive is None:
        return after_read, None
    folder = absolute(checked_path(archive)).rstrip("/")
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(absolute(path)))
    if (
        is_local_path(folder)
        and is_local_path(path)
        and not inside.startswith("..")
        and not any(map(hidden, inside.split("/")))
    ):
        hint = f"use a folder elsewhere, or a hidden one: {os.path.join(path, '_archive')}"
        raise PlanError("the archive lies in the folder that is read", got=folder, then="files would be read again", hint=hint)
    if is_local_path(folder) != is_local_path(absolute(path)):
        hint = "use a folder on the file system of the files"
        raise PlanError("files are moved within one file system only", got=folder, hint=hint)
    return after_read, folder


def checked_path(path: object) -> str:
    """A path as text."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if isinstance(text, str) and text.strip() and "\0" not in text and encodable(text):
            return text
    hint = 'pass a folder, a file or a pattern such as "events/*.parquet"'
    if isinstance(path, (list, tuple, set)):
        hint += "; of several folders make one stream with session.union({...})"
    raise PlanError("`path` is not a path", got=shown(path), hint=hint)
