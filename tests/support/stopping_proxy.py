"""An HTTP proxy in front of the Hub that lets a number of requests through and holds the next one for ever."""

import asyncio
import threading

import aiohttp
import yarl
from aiohttp import web

HOP_BY_HOP = {"transfer-encoding", "connection", "content-length", "content-encoding"}


class StoppingProxy:
    """Serves in a thread while the block lasts; `reached` is set when a request is held."""

    def __init__(self, endpoint, requests):
        self.reached, self.num_passed = threading.Event(), 0
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
        if self._left == 0:
            self.reached.set()
            await self._end.wait()
            raise web.HTTPServiceUnavailable
        self._left, self.num_passed = self._left - 1, self.num_passed + 1
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
