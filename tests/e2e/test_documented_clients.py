"""The examples of docs/CLIENTS.md, run as they stand there but for the ports."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from daemon import SOURCE_DIR
from test_go_clients import TOOLS

DOCUMENT = (SOURCE_DIR / "docs" / "CLIENTS.md").read_text()


def examples(daemon, section: str, language: str) -> list[str]:
    """The blocks of one language below a heading, with the daemon's ports."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    return [b.replace(":8080", f":{daemon.http_port}").replace(":50051", f":{daemon.grpc_port}") for b in blocks]


def run(*command, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("section", ["openai for Python", "langchain-openai"])
def test_python(daemon, section):
    for block in examples(daemon, section, "python"):
        assert len(run(sys.executable, "-c", block)) > 10


def test_llm(daemon, tmp_path):
    (models,) = examples(daemon, "llm", "yaml")
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    (commands,) = examples(daemon, "llm", "sh")
    key, ask, chat = commands.splitlines()
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path),
                                "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert run("bash", "-c", f"{key}; {ask}", env=environment, stdin=subprocess.DEVNULL).strip()
    printed = run("bash", "-c", f"{key}; {chat}", env=environment, input="Say hello.\nexit\n")
    assert "Chatting with kvasir" in printed and printed.rpartition("> ")[0].rpartition("> ")[2].strip()


@pytest.mark.all
@pytest.mark.skipif(not (TOOLS / "built").exists(), reason="the Go tools are not built (tests/support/build_go_tools.sh)")
def test_grpc_tools(daemon):
    (commands,) = examples(daemon, "gRPC: grpcurl, grpc-health-probe, grpcio", "sh")
    printed = run("bash", "-e", "-c", commands, env=os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}"})
    assert "kvasir.v1.Inference" in printed and "temperature" in printed and '"text"' in printed
