"""The engine's sequence slots and the first-in-first-out queue before them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """The queue holds as many requests as it may; nothing was enqueued."""


class Slots:
    """`size` sequences run at once; at most `max_queue` requests wait (None: no bound), served in
    order of arrival."""

    def __init__(self, size: int, max_queue: int | None = None) -> None:
        self.size = size
        self.max_queue = max_queue
        self.running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def refuses(self) -> bool:
        """Whether a request that came now would find every slot and every place in the queue
        taken."""
        return self.max_queue is not None and self.running >= self.size and self.waiting >= self.max_queue

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """A slot for the block; given back however the block ends. Raises QueueFull."""
        await self._acquire()
        try:
            yield
        finally:
            self._release()

    async def _acquire(self) -> None:
        if self.running < self.size and not self._waiting:
            self.running += 1
            return
        if self.refuses():
            raise QueueFull
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # the slot was handed over in the moment the waiter left: pass it on
                self._release()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _release(self) -> None:
        """Hands the slot to the first waiter, so that `running` does not dip in between, or frees
        it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
