"""WhiteNoise as a middleware that does not put every request, and what waits within it, on a thread of its own."""

from __future__ import annotations

from asyncio import iscoroutinefunction
from collections.abc import Callable
from typing import Any

from asgiref.sync import markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticMiddleware(WhiteNoiseMiddleware):
    """Serves static files; passes other requests on at once, under ASGI as coroutines."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[..., Any], *settings: Any) -> None:
        super().__init__(get_response, *settings)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._answer(request)
        return super().__call__(request)

    async def _answer(self, request: HttpRequest) -> Any:
        path = request.path_info
        found = await sync_to_async(self.find_file)(path) if self.autorefresh else self.files.get(path)
        if found is not None:
            return await sync_to_async(self.serve)(found, request)
        return await self.get_response(request)
