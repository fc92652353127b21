"""An HTTP proxy in front of the Hub that lets a number of requests through and holds the next one for ever.

It can also answer in the Hub's place. `Trouble` is such an answer, once or for ever.
"""

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import yarl
from aiohttp import web

HOP_BY_HOP = {"transfer-encoding", "connection", "content-length", "content-encoding"}


@dataclass
class Trouble:
    """What a request is answered instead of what the Hub says."""

    status: int = 503
    """0: the connection is cut."""

    text: str = '{"error": "busy"}'
    headers: dict[str, str] = field(default_factory=dict)
    lands: bool = False
    """Whether the Hub is asked all the same."""

    path: str = "/commit/"
    """In the paths of the requests that are answered so."""

    times: float = 1
    before: Callable[[], object] = lambda: None
    """Called before the answer, in another thread."""

    def holds_for(self, request) -> bool:
        if self.path not in request.path or self.times <= 0:
            return False
        self.times -= 1
        return True


class StoppingProxy:
    """Serves in a thread while the block lasts; `reached` is set when a request is held or has trouble."""

    def __init__(self, endpoint, requests=math.inf, trouble=None):
        self.reached, self.num_passed, self._trouble = threading.Event(), 0, trouble
        self._endpoint, self._left = endpoint, requests
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def _serve(self):
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self):
        self._end = asyncio.Event()
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(application, shutdown_timeout=0.1, auto_decompress=False)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.endpoint = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            self._ready.set()
            await self._end.wait()
            await runner.cleanup()

    async def _pass(self, request):
        body = await request.read()
        if self._trouble is not None and self._trouble.holds_for(request):
            return await self._answer(request, body, self._trouble)
        if self._left == 0:
            self.reached.set()
            await self._end.wait()
            raise web.HTTPServiceUnavailable
        self._left, self.num_passed = self._left - 1, self.num_passed + 1
        return await self._forward(request, body)

    async def _answer(self, request, body, trouble):
        if trouble.lands:
            await self._forward(request, body)
        await asyncio.to_thread(trouble.before)
        self.reached.set()
        if not trouble.status:
            request.transport.abort()
        kind = "application/json" if trouble.text.startswith("{") else "text/html"
        return web.Response(status=trouble.status or 500, text=trouble.text, content_type=kind, headers=trouble.headers)

    async def _forward(self, request, body):
        # The Hub answers with addresses of the host that it was asked as, which is this proxy.
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        url = f"{self._endpoint}{request.raw_path}"
        async with self._session.request(
            request.method, yarl.URL(url, encoded=True), headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            if request.method == "HEAD" and "Content-Length" in answer.headers:
                kept["Content-Length"] = answer.headers["Content-Length"]
            return web.Response(status=answer.status, headers=kept, body=None if request.method == "HEAD" else content)
