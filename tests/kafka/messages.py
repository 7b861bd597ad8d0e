"""Types of protobuf's messages, as `protoc` would make them, and a schema registry of one process."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2

KINDS: Final = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
OPTIONAL, REPEATED = 1, 3
EVENT: Final = """
    user string; at .google.protobuf.Timestamp; amount int64; note optional string; tags repeated string; kind .test.Kind;
    place .test.Place; ratio double; small float; flag bool; raw bytes; big uint64; count .google.protobuf.Int64Value;
    took .google.protobuf.Duration; places repeated .test.Place; labels map
"""


def _field(made: Any, name: str, words: list[str], number: int) -> None:
    field = made.field.add(name=name, number=number, label=OPTIONAL)
    if words == ["map"]:
        entry = made.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _field(entry, "key", ["string"], 1)
        _field(entry, "value", ["int64"], 2)
        words = ["repeated", f".test.{made.name}.{entry.name}"]
    *how, kind = words
    if how == ["repeated"]:
        field.label = REPEATED
    if how == ["optional"]:
        made.oneof_decl.add(name=f"_{name}")
        field.proto3_optional, field.oneof_index = True, len(made.oneof_decl) - 1
    if kind == ".test.Kind":
        field.type, field.type_name = 14, kind
    elif kind in KINDS:
        field.type = KINDS[kind]
    else:
        field.type, field.type_name = 11, kind


def _message(made: Any, fields: str) -> None:
    for number, one in enumerate(filter(None, map(str.split, fields.split(";"))), 1):
        _field(made, one[0], one[1:], number)


def described() -> descriptor_pb2.FileDescriptorSet:
    """A file with messages ``test.Other``, ``test.Event`` and ``test.Event.Inner``, and what it imports."""
    actual = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(actual.file.add())
    file = actual.file.add(name="test.proto", package="test", syntax="proto3")
    file.dependency.extend(m.DESCRIPTOR.name for m in (timestamp_pb2, duration_pb2, wrappers_pb2))
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(["NONE", "CLICK", "VIEW"]):
        kinds.value.add(name=name, number=number)
    _message(file.message_type.add(name="Other"), "amount int32; self .test.Other")
    event = file.message_type.add(name="Event")
    _message(event, EVENT)
    _message(event.nested_type.add(name="Inner"), "amount int64")
    _message(file.message_type.add(name="Place"), "city string; x double")
    return actual


def classes() -> dict[str, Any]:
    """The classes by name."""
    pool = descriptor_pool.DescriptorPool()
    for file in described().file:
        pool.Add(file)
    names = ("Other", "Event", "Event.Inner", "Place")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test.{name}")) for name in names}


def classes_of(fields: str) -> Any:
    """A class of messages with these fields, the only one of its file."""
    actual = described()
    file = actual.file[-1]
    file.ClearField("message_type")
    _message(file.message_type.add(name="Row"), fields)
    pool = descriptor_pool.DescriptorPool()
    for one in actual.file:
        pool.Add(one)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Row"))


@contextlib.contextmanager
def registry(known: dict[int, dict[str, Any]] | None = None) -> Iterator[tuple[str, dict[int, dict[str, Any]]]]:
    """A schema registry's address, and its schemas by number, which grow as they are registered."""
    schemas = {} if known is None else dict(known)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = self.path.split("?")[0].rpartition("/")[2]
            if "/versions/" in self.path and number.isdigit():
                subject = urllib.parse.unquote(self.path.split("/")[2])
                of_it = [(one, given) for one, given in schemas.items() if given.get("subject") == subject][int(number) - 1 :]
                self._answer({**of_it[0][1], "id": of_it[0][0], "version": int(number)} if of_it else None)
                return
            if number == "latest":
                subject = self.path.split("/")[2]
                of_it = [(one, given) for one, given in schemas.items() if given.get("subject") == subject]
                self._answer({**of_it[-1][1], "id": of_it[-1][0], "version": len(of_it)} if of_it else None)
                return
            self._answer(schemas.get(int(number)) if number.isdigit() else None)

        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            subject = urllib.parse.unquote(self.path.split("?")[0].split("/")[2])
            more = {"references": given["references"]} if given.get("references") else {}
            given = {"subject": subject, "schema": given["schema"], "schemaType": given.get("schemaType", "AVRO"), **more}
            same = [number for number, one in schemas.items() if one == given]
            number = same[0] if same else 1 + max(schemas, default=0)
            schemas[number] = given
            self._answer({**given, "id": number, "version": 1})

        def _answer(self, actual: Any) -> None:
            self.send_response(200 if actual else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            self.wfile.write(json.dumps(actual or {"error_code": 40403, "message": "Schema not found"}).encode())

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", schemas
    finally:
        server.shutdown()


def as_text(file: Any) -> str:
    """A file of descriptors as a registry keeps it."""
    return base64.b64encode(file.SerializeToString()).decode()
