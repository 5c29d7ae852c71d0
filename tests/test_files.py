"""Files that are there whole or not at all."""

import os
from pathlib import Path

from hyla._files import write_atomically


def test_two_writers_of_one_file_do_not_meet(monkeypatch, tmp_path: Path):
    path = tmp_path / "file"

    def replaced(temporary, target, replace=os.replace):
        monkeypatch.setattr(os, "replace", replace)
        write_atomically(path, b"of another thread")  # in the middle of it
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", replaced)
    write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]
