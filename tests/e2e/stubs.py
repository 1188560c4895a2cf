"""Python classes of proto/kvasir/v1/inference.proto, generated anew for each run so that they cannot be stale."""

import importlib
import pathlib
import sys
import tempfile

import grpc_tools
from grpc_tools import protoc

_PROTO_DIR = pathlib.Path(__file__).resolve().parents[2] / "proto"
_folder = tempfile.TemporaryDirectory(prefix="kvasir-stubs-")

_failed = protoc.main(["protoc", f"-I{_PROTO_DIR}", f"-I{pathlib.Path(grpc_tools.__file__).parent / '_proto'}",
                       f"--python_out={_folder.name}", f"--grpc_python_out={_folder.name}",
                       "kvasir/v1/inference.proto"])
assert not _failed, "protoc failed"
sys.path.insert(0, _folder.name)
pb = importlib.import_module("kvasir.v1.inference_pb2")
pb_grpc = importlib.import_module("kvasir.v1.inference_pb2_grpc")
