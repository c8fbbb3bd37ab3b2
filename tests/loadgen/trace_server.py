"""A local HTTP server that behaves, or misbehaves, as download servers do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Shelf:
    """What a server offers and how it behaves; ``asked`` keeps (path, Range header) of every request."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.ranges = True  # understands Range
        self.drops: list[int] = []  # after how many bytes each of the next answers breaks off
        self.statuses: list[int] = []  # statuses of the next answers in place of content
        self.asked: list[tuple[str, str]] = []
        self.url = ""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Shelf]:
    """Serve ``files`` by name on a free local port."""
    shelf = Shelf(files)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wish = self.headers.get("Range", "")
            shelf.asked.append((self.path, wish))
            if shelf.statuses:
                self.send_error(shelf.statuses.pop(0))
                return
            content = shelf.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            found = re.fullmatch(r"bytes=(\d+)-", wish) if shelf.ranges else None
            start = int(found[1]) if found else 0
            if found and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            stop = start + shelf.drops.pop(0) if shelf.drops else len(content)
            self.wfile.write(content[start:stop])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    shelf.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield shelf
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
