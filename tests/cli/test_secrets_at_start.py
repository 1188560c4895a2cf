"""Files that hold secrets, and sockets, at start: what cannot be used ends it in one line, before a model is loaded, and no
line shows what is in a file of keys."""

import os
import socket
import subprocess

import pytest

from test_command_line import MODEL, refused

FREE = ("--model", MODEL, "--http-port", 0, "--grpc-port", 0, "--kv-budget", "1MiB", "--threads", 1)


@pytest.mark.parametrize("content, said", [
    ("", "holds no key"), ("# only this\n\n  \r\n", "holds no key"), ("ok\nSECRET two\n", "line 2 has a character"),
    ("SECRET\té\n", "line 1 has a character"), ("a\n" + "SECRET" * 100 + "\n", "line 2 is longer than 512 bytes"),
    ("#" * (1 << 20) + "\nSECRET\n", "is larger than"),
], ids=range(6))
def test_a_file_without_good_keys_is_never_no_keys(tmp_path, content, said):
    path = tmp_path / "keys"
    path.write_text(content)
    message = refused(*FREE, "--api-key-file", path)
    assert said in message and "--api-key-file" in message and str(path) in message and "allowed:" in message
    assert "SECRET" not in message
    assert "environment: KVASIR_API_KEY_FILE" in refused(*FREE, KVASIR_API_KEY_FILE=str(path))


@pytest.mark.parametrize("option", ["--api-key-file", "--tls-cert", "--tls-key"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, option):
    os.mkfifo(tmp_path / "fifo")
    pair = make_pair(tmp_path, "good")
    # The other one of the pair is good.
    other = {"--tls-cert": ("--tls-key", pair[1]), "--tls-key": ("--tls-cert", pair[0])}.get(option, ())
    for path, said in ((tmp_path / "none", "cannot be read"), (tmp_path, "is a folder"), (tmp_path / "fifo", "is a pipe"),
                       ("/dev/null", "is a device")):
        message = refused(*FREE, option, path, *other)
        assert said in message and option in message and str(path) in message


def test_files_of_another_user_are_refused(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    for option, path in (("--api-key-file", tmp_path / "keys"), ("--model", tmp_path / "model")):
        path.write_text("key\n")
        path.chmod(0)
        assert "Permission denied" in refused(*FREE, option, path)


def make_pair(folder, name):
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


def test_a_certificate_needs_its_own_key(tmp_path):
    certificate, key = make_pair(tmp_path, "one")
    other_key = make_pair(tmp_path, "two")[1]
    for option, file, needed in (("--tls-cert", certificate, "--tls-key"), ("--tls-key", key, "--tls-cert")):
        message = refused(*FREE, option, file)
        assert message.startswith(f"kvasir: command line: {option}: ") and f"without {needed}" in message
    assert "is not the private key of" in refused(*FREE, "--tls-cert", certificate, "--tls-key", other_key)
    assert "no PEM certificate" in refused(*FREE, "--tls-cert", key, "--tls-key", key)
    assert "no PEM private key" in refused(*FREE, "--tls-cert", certificate, "--tls-key", certificate)


@pytest.mark.parametrize("option", ["--http-socket", "--grpc-socket"])
def test_a_socket_takes_no_place_of_something_else(tmp_path, option):
    (tmp_path / "file").write_text("mine")
    assert "something else is there" in refused(*FREE, option, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    message = refused(*FREE, option, tmp_path / "none" / "socket")
    assert "is in no folder" in message and option in message
    assert "must be shorter" in refused(*FREE, option, tmp_path / ("x" * 120))
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "taken"))
        taken.listen()
        message = refused(*FREE, option, tmp_path / "taken")
        assert "another process listens on it" in message and option in message


def test_one_socket_cannot_serve_both_doors(tmp_path):
    path = tmp_path / "socket"
    assert "HTTP socket already" in refused(*FREE, "--http-socket", path, "--grpc-socket", path)
