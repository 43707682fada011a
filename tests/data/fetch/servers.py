"""A web server on this machine that behaves as well or as badly as a test wants."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Site:
    """What the server holds, and how it behaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Content by path, such as `/a.nc`."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers for every answer."""
    ranges: bool = True
    """Whether parts are given."""
    etags: bool = True
    """Whether answers have an ETag."""
    lengths: bool = True
    """Whether answers have a length."""
    failures: list[int] = field(default_factory=list)
    """Statuses to answer the next requests with, instead of the file."""
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which the connection breaks, for the next answers that hold content of more than one byte."""
    after_cut: dict[str, bytes] = field(default_factory=dict)
    """Files that are put in place of others once a connection has broken."""
    pace: threading.Event | None = None
    """Where given, an answer stops after half of its content until it is set."""
    bodies: dict[int, bytes] = field(default_factory=dict)
    """Content of the answer with a status that is a failure."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path and range of each request so far."""
    sent: int = 0
    """Bytes of content so far."""
    url: str = ""

    def etag(self, path: str) -> str:
        return f'"{hashlib.md5(self.files[path]).hexdigest()}-x"'


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        if site.pace:
            site.pace.set()
        server.shutdown()
        server.server_close()


def answer(request: BaseHTTPRequestHandler, site: Site) -> None:
    path = unquote(urlsplit(request.path).path)
    wanted = request.headers.get("Range", "")
    site.requests.append((path, wanted))
    if site.failures:
        return refuse(request, site, site.failures.pop(0))
    if path not in site.files:
        return refuse(request, site, 404)
    content, status, first, last = site.files[path], 200, 0, len(site.files[path]) - 1
    unchanged = request.headers.get("If-Range", site.etag(path)) == site.etag(path)
    if wanted and site.ranges and unchanged:
        low, _, high = wanted.removeprefix("bytes=").partition("-")
        first, last, status = int(low), min(int(high or last), last), 206
        if first >= len(content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            request.send_header("Content-Length", "0")
            return request.end_headers()
    body = content[first : last + 1]
    request.send_response(status)
    if status == 206:
        request.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
    if site.etags:
        request.send_header("ETag", site.etag(path))
    if site.lengths:
        request.send_header("Content-Length", str(len(body)))
    else:
        request.send_header("Connection", "close")
    for name, value in site.headers.items():
        request.send_header(name, value)
    request.end_headers()
    send(request, site, body)


def send(request: BaseHTTPRequestHandler, site: Site, body: bytes) -> None:
    cut = site.cut_after.pop(0) if site.cut_after and len(body) > 1 else None
    half = len(body) // 2 if site.pace and len(body) > 1 else None
    stop = cut if cut is not None else half
    try:
        request.wfile.write(body[:stop])
        request.wfile.flush()
        site.sent += len(body[:stop])
        if cut is not None:
            site.files.update(site.after_cut)
            request.close_connection = True
            request.connection.close()
        elif half is not None and site.pace:
            site.pace.wait(60)
            request.wfile.write(body[half:])
            site.sent += len(body[half:])
        if not site.lengths:
            request.close_connection = True
    except OSError:
        request.close_connection = True


def refuse(request: BaseHTTPRequestHandler, site: Site, status: int) -> None:
    body = site.bodies.get(status, b"")
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
