"""The authenticated long poll by which data-plane replicas receive the configuration and report on it.

Every control-plane replica answers from the stored object; none has to be the leader. A poll that learns nothing because the
API server is silent ends in 503, so that the data plane knows that it has no contact.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

from aiohttp import web

from meridian_api.serving import Envelope
from meridian_operator.cluster import Cluster, ClusterError, NotFound
from meridian_operator.converge import World
from meridian_operator.serving import measures, wakeups
from meridian_operator.serving.acknowledgements import clean_report
from meridian_operator.serving.callers import Callers, TokenReviewer, service_account
from meridian_operator.serving.reports import Reports
from meridian_operator.serving.stored import envelope_of
from meridian_operator.serving.wakeups import Wakeups

MAX_WAIT = 25.0
_LOOK_SECONDS = 1.0
"""Between two reads while somebody waits and nothing wakes."""
_MAX_GENERATION = 2**62
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def notify(service: str) -> None:
    """Wake this process's pollers of `service`: call it for every event of its ServingConfig."""
    wakeups.LOCAL.notify(service)


@dataclass(frozen=True)
class Poll:
    """One request, parsed."""

    service: str
    have: int
    replica: str
    applied: int
    digest: str
    refused: int
    reason: str
    wait: float


class Distributor:
    """The routes, and the task that writes reports. One per control-plane replica."""

    def __init__(
        self, cluster: Cluster, namespace: str, callers: Callers, reports: Reports, wakes: Wakeups = wakeups.LOCAL
    ) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._callers, self._reports, self._wakes = callers, reports, wakes
        self._reads: dict[str, asyncio.Task[Envelope | None]] = {}
        self._closing = False

    def routes(self) -> list[web.RouteDef]:
        """For the application that serves probes and metrics too."""
        return [web.get("/v1/config/{service}", self.answer)]

    async def run(self) -> None:
        """Write reports until cancelled; then end every waiting poll at once, so that a rollout is not held up by them."""
        try:
            await self._reports.run()
        finally:
            self._closing = True
            self._wakes.notify_all()

    async def answer(self, request: web.Request) -> web.Response:
        """One poll, counted."""
        with measures.waiting.track_inprogress():
            answer = await self._answer(request)
        measures.polls.labels(str(answer.status)).inc()
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        """200 with a newer envelope, 204 when there is none within `wait`; 400, 401, 403 and 503 with a reason."""
        try:
            user = await self._callers.user(request.headers.get("Authorization", ""))
        except ClusterError:
            return _refusal(503, "the token could not be reviewed")
        if user is None:
            return _refusal(401, "a ServiceAccount token for this audience is required")
        if not self._callers.allows(user):
            return _refusal(403, "this subject may not read the configuration")
        try:
            poll = parse(request)
        except ValueError as wrong:
            return _refusal(400, str(wrong))
        report = clean_report(poll.replica, poll.applied, poll.refused, poll.reason, poll.digest)
        if report is None:
            return _refusal(400, "replica must be a pod's name")
        if user.pod is not None and user.pod != poll.replica:
            return _refusal(403, "the token is bound to another pod: a replica reports for itself only")
        if self._reports.take(poll.service, report) and report.refused_generation:
            measures.refused.labels(poll.service).inc()
        return await self._wait(poll)

    async def _wait(self, poll: Poll) -> web.Response:
        deadline = time.monotonic() + poll.wait
        event = self._wakes.register(poll.service)
        heard, passed_over = False, ""
        try:
            while not self._closing:
                event.clear()  # before the read: a change during it wakes the wait below
                try:
                    envelope = await self._read(poll.service)
                    heard = True
                    if envelope is not None and envelope.generation > poll.have:
                        return web.json_response(envelope.to_wire())
                    if envelope is not None and envelope.digest not in (poll.digest, passed_over):
                        # What is stored was made anew, below what this replica holds: its status has to say so (F-07).
                        self._reports.again(poll.service, poll.replica)
                        passed_over = envelope.digest
                except ClusterError:
                    pass  # tried again until the deadline
                left = deadline - time.monotonic()
                if left <= 0:
                    return web.Response(status=204) if heard else _refusal(503, "the API server does not answer")
                try:
                    async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                        await event.wait()
                except TimeoutError:
                    pass
            return _refusal(503, "this replica is shutting down")
        finally:
            self._wakes.release(poll.service, event)

    async def _read(self, service: str) -> Envelope | None:
        """The stored envelope, or None. Pollers that ask at the same moment share one read that began after they asked."""
        running = self._reads.get(service)
        if running is not None:
            # Begun before this call: it may have missed the write that woke us, so wait for it and then read anew.
            await asyncio.wait({running})
            running = self._reads.get(service)
        if running is None:
            running = asyncio.create_task(self._get(service))
            self._reads[service] = running
            running.add_done_callback(lambda task: self._done(service, task))
        return await asyncio.shield(running)

    def _done(self, service: str, task: asyncio.Task[Envelope | None]) -> None:
        if self._reads.get(service) is task:
            del self._reads[service]
        if not task.cancelled():
            task.exception()  # seen: a reader that was cancelled leaves it behind

    async def _get(self, service: str) -> Envelope | None:
        try:
            manifest = await self._cluster.get("ServingConfig", self._namespace, service)
            envelope = envelope_of(manifest)
            measures.generation.labels(service).set(envelope.generation)
            return envelope
        except NotFound:
            return None
        except (KeyError, ValueError):
            return None  # a spec that is not whole is never sent


def distributor(world: World, reviewer: TokenReviewer) -> Distributor:
    """As the operator's process uses it."""
    settings = world.settings
    allowed = frozenset({service_account(settings.namespace, settings.dataplane_service_account)})
    callers = Callers(reviewer, settings.config_audience, allowed)
    reports = Reports(world.cluster, settings.namespace, settings.dataplane_service)
    return Distributor(world.cluster, settings.namespace, callers, reports)


def parse(request: web.Request) -> Poll:
    """The query, bounded. Raises ValueError."""
    query = request.query
    service = request.match_info["service"]
    if not _SERVICE.fullmatch(service):
        raise ValueError("service must be a DNS label")
    return Poll(
        service=service,
        have=_count(query.get("have", "0"), "have"),
        replica=query.get("replica", ""),
        applied=_count(query.get("applied", "0"), "applied"),
        digest=query.get("digest", "")[:80],
        refused=_count(query.get("refused", "0"), "refused"),
        reason=query.get("reason", "")[:1024],
        wait=_seconds(query.get("wait", "0")),
    )


def _count(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _MAX_GENERATION:
        raise ValueError(f"{name} must be a whole number from 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("wait must be seconds") from None
    if not value >= 0:
        raise ValueError("wait must be seconds from 0")
    return min(value, MAX_WAIT)


def _refusal(status: int, why: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return web.json_response({"error": why}, status=status, headers=headers)
