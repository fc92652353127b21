"""An agent's view of a Space: its tools over the Model Context Protocol, with the protocol's own client."""

import asyncio
from collections.abc import Mapping
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import CallToolResult, Tool


def use_tools(address: str, *calls: tuple[str, Mapping[str, Any]]) -> tuple[dict[str, Tool], list[CallToolResult]]:
    """Return the tools that a Space at `http://...` offers, by name, and the answers to some calls."""

    async def use() -> tuple[dict[str, Tool], list[CallToolResult]]:
        place = f"{address.rstrip('/')}/gradio_api/mcp/"
        async with streamablehttp_client(place) as (reading, writing, _), ClientSession(reading, writing) as session:
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            return tools, [await session.call_tool(name, dict(values)) for name, values in calls]

    return asyncio.run(use())
