"""Writes on a condition, and files of an S3 store that one process writes and another one makes visible.

A rename would copy such a file. So a task uploads its parts under its final name and leaves the upload open: nobody who lists
the bucket sees it. The driver completes it, which is one request however large the file is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.disk.stores import google
from krishiv_py.disk.stores.kinds import bucket_and_key, is_store, leaves_uploads
from krishiv_py.disk.stores.s3 import client
from krishiv_py.errors import OperatorError

_PART_BYTES: Final = 64 << 20


@attrs.frozen
class Upload:
    """A file whose parts are all there, and that is not visible yet.

    Attributes
    ----------
    name : str
        Its name, without folder.
    upload : str
        What the store calls the upload.
    parts : list of str
        The tags of its parts.
    """

    name: str
    upload: str
    parts: list[str]

    def told(self) -> str:
        """As text, for the driver."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def of(cls, told: str) -> Upload:
        """From the text of a task."""
        return cls(**json.loads(told))


def upload(folder: str, name: str, data: pa.Buffer) -> Upload:
    """Upload all parts of a file in a folder (``bucket/path``), and leave it invisible.

    Raises
    ------
    OperatorError
        When the store refuses.
    """
    bucket, key = bucket_and_key(f"{folder}/{name}")
    store = client(bucket)
    with _telling(f"{folder}/{name}", "a file cannot be uploaded"):
        begun = store.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        try:
            view = memoryview(data)
            pieces = [view[at : at + _PART_BYTES] for at in range(0, max(len(view), 1), _PART_BYTES)]
            parts = [
                store.upload_part(Bucket=bucket, Key=key, UploadId=begun, PartNumber=number, Body=bytes(piece))["ETag"]
                for number, piece in enumerate(pieces, 1)
            ]
        except BaseException:
            with contextlib.suppress(Exception):
                store.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun)
            raise
    return Upload(name, str(begun), [str(part) for part in parts])


def complete(folder: str, done: Upload) -> None:
    """Make a file visible; one that was made so before, by a request whose answer was lost, is passed over.

    Raises
    ------
    OperatorError
        When the store refuses.
    """
    bucket, key = bucket_and_key(f"{folder}/{done.name}")
    store = client(bucket)
    parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(done.parts, 1)]
    with _telling(f"{folder}/{done.name}", "a file cannot be published"):
        try:
            store.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=done.upload, MultipartUpload={"Parts": parts})
        except store.exceptions.ClientError as problem:
            if _code(problem) != "NoSuchUpload" or not _is_there(store, bucket, key):
                raise


def is_open(folder: str, done: Upload) -> bool:
    """Whether an upload was neither completed nor given up; a store that does not say so may still have it."""
    bucket, key = bucket_and_key(f"{folder}/{done.name}")
    store = client(bucket)
    try:
        store.list_parts(Bucket=bucket, Key=key, UploadId=done.upload, MaxParts=1)
    except store.exceptions.ClientError as problem:
        return _code(problem) not in ("NoSuchUpload", "404")
    return True


def open_uploads(folder: str, stem: str) -> dict[str, str]:
    """Uploads that are open, and the object of each, whose names in a folder begin with `stem`.

    None of them where the store does not list uploads, or not to us; MinIO lists those of whole names only.
    """
    bucket, prefix = bucket_and_key(f"{folder}/{stem}")
    store = client(bucket)
    try:
        pages = store.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        return {str(found["UploadId"]): str(found["Key"]) for page in pages for found in page.get("Uploads", [])}
    except store.exceptions.ClientError:
        return {}


def abort(folder: str, uploads: Mapping[str, str]) -> None:
    """Give up uploads: what attempts that failed left behind. Nobody sees them, but they take room."""
    bucket, _ = bucket_and_key(folder)
    store = client(bucket)
    for upload, key in uploads.items():
        with contextlib.suppress(store.exceptions.ClientError):
            store.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)


def tag_of(system: pafs.FileSystem, path: str) -> str | None:
    """What changes whenever an object is written; None where it is not there, or the file system tells none."""
    if not is_store(system):
        return None
    if not leaves_uploads(system):
        return google.generation_of(path)
    bucket, key = bucket_and_key(path)
    store = client(bucket)
    try:
        return str(store.head_object(Bucket=bucket, Key=key)["ETag"])
    except store.exceptions.ClientError as problem:
        if _code(problem) in ("404", "NoSuchKey", "NotFound"):
            return None
        raise OSError(str(problem)) from problem


def put_if(system: pafs.FileSystem, path: str, data: bytes, tag: str | None) -> str | None:
    """Write an object in place of the one with this `tag`, or of none. Gives its new tag; None if another one is there.

    Raises
    ------
    NotImplementedError
        Where the store knows no such writes.
    OSError
        When the store does not answer.
    """
    if not leaves_uploads(system):
        return google.put_if(path, data, tag)
    bucket, key = bucket_and_key(path)
    store = client(bucket)
    condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
    try:
        return str(store.put_object(Bucket=bucket, Key=key, Body=data, **condition)["ETag"])
    except store.exceptions.ClientError as problem:
        code = _code(problem)
        if code in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404"):
            return None
        if code in ("NotImplemented", "501"):
            raise NotImplementedError(str(problem)) from problem
        raise OSError(str(problem)) from problem
    except Exception as problem:  # of the connection: boto3 has many kinds
        raise OSError(str(problem)) from problem


def _is_there(store: Any, bucket: str, key: str) -> bool:
    try:
        store.head_object(Bucket=bucket, Key=key)
    except store.exceptions.ClientError:
        return False
    return True


def _code(problem: Any) -> str:
    return str(problem.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def _telling(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # boto3 has many kinds
        hint = "see what the store says; start the query again: the batch is written again"
        raise OperatorError(what, got=f"{path}: {problem}", then="the batch is not published", hint=hint) from problem
