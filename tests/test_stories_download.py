"""Downloads against a local server: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from workbench.core.errors import DownloadError
from workbench.stories import download
from workbench.stories.download import Source, fetch, source_file

CONTENT = b"Once upon a time.\n" * 1000


class Handler(BaseHTTPRequestHandler):
    """Serves files of our own, whole, cut short, or not at all."""

    requests: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path.endswith("missing.txt"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: 5000 if self.path.endswith("cut.txt") else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    Handler.requests.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def source(path: str, sha256: str | None = None) -> Source:
    digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
    return Source(f"folder/{path}", "owner/repo", "0123456789ab" + "0" * 28, f"data/{path}", digest)


def left_behind(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_file_is_fetched_once(host: str, tmp_path: Path) -> None:
    path = fetch(source("good.txt"), host=host)
    assert path == tmp_path / "cache/stories/0123456789ab/folder/good.txt"
    assert path.read_bytes() == CONTENT
    assert Handler.requests == [f"/owner/repo/0123456789ab{'0' * 28}/data/good.txt"]
    assert fetch(source("good.txt"), host=host) == path
    assert len(Handler.requests) == 1
    assert left_behind(tmp_path) == ["good.txt"]


def test_a_damaged_file_in_the_cache_is_fetched_again(host: str) -> None:
    path = fetch(source("good.txt"), host=host)
    path.write_bytes(b"damaged")
    assert fetch(source("good.txt"), host=host).read_bytes() == CONTENT


def test_another_hash_is_an_error_and_nothing_is_kept(host: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"good\.txt was fetched, but its sha256 is not 1111"):
        fetch(source("good.txt", "1" * 64), host=host)
    assert left_behind(tmp_path) == []


def test_a_missing_file_is_an_error(host: str, tmp_path: Path) -> None:
    with pytest.raises(
        DownloadError, match=r"missing\.txt could not be fetched \(HTTP status 404\)"
    ):
        fetch(source("missing.txt"), host=host)
    assert left_behind(tmp_path) == []


def test_an_interrupted_transfer_is_an_error(host: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"cut\.txt"):
        fetch(source("cut.txt"), host=host)
    assert left_behind(tmp_path) == []


def test_no_connection_is_an_error_with_the_mend(host: str, tmp_path: Path) -> None:
    closed = host.rsplit(":", 1)[0] + ":9"
    with pytest.raises(DownloadError, match=r"put the file as folder/good.txt into a folder"):
        fetch(source("good.txt"), host=closed)
    assert left_behind(tmp_path) == []


def test_a_cache_that_cannot_be_written(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="could not be fetched"):
        fetch(source("good.txt"), host=host)


def test_source_file_prefers_the_data_folder(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = source("good.txt")
    monkeypatch.setattr(download, "sources", lambda: {row.file: row})
    monkeypatch.setattr(download, "RAW_HOST", host)
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("WORKBENCH_DATA", str(folder))
    # The folder lacks it, so it is downloaded; where it has it, nothing is.
    assert download.available(row.file) == "download"
    assert source_file(row.file).is_relative_to(tmp_path / "cache")
    assert download.available(row.file) == "cache"
    (folder / row.file).parent.mkdir()
    (folder / row.file).write_bytes(CONTENT)
    assert source_file(row.file) == folder / row.file
    assert download.available(row.file) == "data folder"
    assert len(Handler.requests) == 1


def test_addresses_name_a_commit() -> None:
    for row in download.sources().values():
        assert row.url() == f"{download.RAW_HOST}/{row.repository}/{row.commit}/{row.path}"
