"""A server that keeps every byte that arrives, and answers as an admission service, a proxy or nothing would."""

import socketserver
import threading

LIMIT_SECONDS = 120.0


class HostileService(socketserver.ThreadingTCPServer):
    """Serves in threads while the block lasts; `answer` is what it sends, whole, or piece by piece if it is a list."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.answer: bytes | list[bytes] = b""
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Answer)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "HostileService":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_over.set()
        self.shutdown()
        self.server_close()

    def everything(self) -> bytes:
        """Return what has arrived so far, requests one after the other."""
        return b"\n".join(self.heard)


class _Answer(socketserver.BaseRequestHandler):
    server: HostileService

    def handle(self) -> None:
        self.request.settimeout(LIMIT_SECONDS)
        content = b""
        while b"\r\n\r\n" not in content:
            if not (piece := self.request.recv(65_536)):
                break
            content += piece
        head, _, body = content.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length:")]
        while lengths and len(body) < int(lengths[0]):
            if not (piece := self.request.recv(65_536)):
                break
            body += piece
        self.server.heard.append(head + b"\r\n\r\n" + body)
        try:
            if isinstance(self.server.answer, bytes):
                self.request.sendall(self.server.answer)
            else:
                while not self.server.is_over.is_set():
                    for piece in self.server.answer:
                        self.request.sendall(piece)
                        self.server.is_over.wait(0.01)
        except OSError:
            pass


def http(status: str, body: bytes = b"", **headers: object) -> bytes:
    """Return an answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
