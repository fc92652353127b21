"""A web server of pictures that misbehaves in every way that a downloader meets, by the path that is asked for."""

import asyncio
import threading
from collections import Counter

JPEG = b"\xff\xd8\xff" + b"picture" * 10


def answer(status: str = "200 OK", body: bytes = JPEG, **headers: object) -> bytes:
    names = {"Content_Length": len(body), **headers}
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in names.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


ANSWERS = {
    "/noai": answer(X_Robots_Tag="noai"),
    "/noimageai": answer(X_Robots_Tag="nofollow, NoImageAI"),
    "/one-robot": answer(X_Robots_Tag="otherbot: noindex, noai"),
    "/tdm": answer(TDM_Reservation=1),
    "/no-tdm": answer(TDM_Reservation=0, X_Robots_Tag="all"),
    "/loop": answer("302 Found", b"", Location="/loop"),
    "/hop": answer("301 Moved Permanently", b"", Location="/ok"),
    "/hop-to-file": answer("302 Found", b"", Location="file:///etc/passwd"),
    "/hop-to-noai": answer("307 Temporary Redirect", b"", Location="/noai"),
    "/hop-nowhere": answer("302 Found", b""),
    "/html": answer(body=b"<html>not here any more</html>", Content_Type="image/jpeg"),
    "/empty": answer(body=b""),
    "/heic": answer(body=b"\0\0\0\x18ftypheic\0\0\0\0"),
    "/gone": answer("410 Gone"),
    "/broken": answer("500 Internal Server Error"),
    "/busy": answer("429 Too Many Requests", b"", Retry_After=0),
    "/huge": answer(body=b"", Content_Length=10**12),
    "/cut": answer(Content_Length=10**4),
    "/cut-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" + JPEG,
    "/nonsense": b"\x00\x01\x02 not HTTP at all\r\n\r\n",
    "/negative": answer(Content_Length=-5),
    "/long-header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "/silent-end": b"",
}
SLOW = {"/slow-head": b"HTTP/1.1 200 OK\r\n", "/slow-body": answer(Content_Length=10**5)}
"""What is followed by one byte after the other."""
TWICE = {"/busy-once": answer("503 Service Unavailable", b"", Retry_After=0), "/broken-once": ANSWERS["/broken"]}
"""What is answered the first time; a picture follows."""


class MisbehavingServer:
    """Serves in a thread while the block lasts."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.most_at_once = 0
        self.special: dict[str, bytes] = {}
        """Answers of this server alone, by path."""
        self._at_once = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "MisbehavingServer":
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._stopping = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for writer in self._writers:
            writer.close()
        while self._writers:
            await asyncio.sleep(0.01)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            await self._respond(request.split(b" ")[1].decode(), writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    async def _respond(self, path: str, writer: asyncio.StreamWriter) -> None:
        self.asked[path] += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if path.startswith("/ok"):
                await asyncio.sleep(0.02)
            if path in SLOW:
                await self._drip(SLOW[path], writer)
            elif path == "/endless":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + JPEG)
                while not writer.is_closing():
                    writer.write(bytes(2**16))
                    await writer.drain()
            elif path in TWICE and self.asked[path] == 1:
                writer.write(TWICE[path])
            else:
                writer.write(self.special.get(path) or ANSWERS.get(path, answer()))
        finally:
            self._at_once -= 1

    async def _drip(self, beginning: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        while not writer.is_closing():
            await asyncio.sleep(0.05)
            writer.write(b"X")
            await writer.drain()
