"""Output paths that users name: files, links, pipes, devices and folders."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.stores.outputs import open_output


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.jsonl"
    with open_output(path) as file:
        file.write(b"one")
    with pytest.raises(KeyError), open_output(path) as file:
        file.write(b"two")
        raise KeyError
    assert path.read_bytes() == b"one" and os.listdir(path.parent) == ["out.jsonl"]


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    target, link, loose = (
        tmp_path / "data" / "out.jsonl",
        tmp_path / "link.jsonl",
        tmp_path / "loose.jsonl",
    )
    target.parent.mkdir()
    target.write_bytes(b"before")
    link.symlink_to("data/out.jsonl")
    loose.symlink_to("data/later.jsonl")
    for path in (link, loose):
        with open_output(path) as file:
            file.write(b"after")
        assert path.is_symlink()
    assert target.read_bytes() == target.with_name("later.jsonl").read_bytes() == b"after"


def test_a_pipe_stays_one_and_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with open_output(pipe) as file:
        file.write(b"lines")
    reader.join(600)
    assert read == [b"lines"] and stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_device_stays_one(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.open("wb").close()
    except OSError:
        pytest.skip("devices cannot be made here")
    with open_output(null) as file:
        file.write(b"lines")
    assert stat.S_ISCHR(null.lstat().st_mode) and os.listdir(tmp_path) == ["null"]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a folder; name a file to write"), open_output(tmp_path):
        pass
