"""Who may ask for the configuration: a ServiceAccount token for our audience, of an allowed subject, checked by TokenReview."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from meridian_operator.cluster import Subject

_KEEP_SECONDS = 60.0
_KEEP_REFUSAL_SECONDS = 5.0
_CAPACITY = 1024
_TOKEN_LIMIT = 8192


class TokenReviewer(Protocol):
    """The part of the API server that knows tokens."""

    async def review_token(self, token: str, audience: str) -> Subject | None:
        """The subject of a valid token for `audience`. Raises ClusterError."""
        ...


@dataclass(frozen=True)
class _Answer:
    user: Subject | None
    until: float


class Callers:
    """Answers are kept for a minute under the token's digest, so that polls do not become TokenReviews; the cache is bounded."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        audience: str,
        allowed: frozenset[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reviewer, self._audience, self._allowed, self._clock = reviewer, audience, allowed, clock
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()

    async def user(self, authorization: str) -> Subject | None:
        """The subject behind an Authorization header; None for no or no valid token. Raises ClusterError."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _TOKEN_LIMIT:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        kept = self._answers.get(digest)
        if kept is not None and self._clock() < kept.until:
            return kept.user
        user = await self._reviewer.review_token(token, self._audience)
        keep = _KEEP_REFUSAL_SECONDS if user is None else _KEEP_SECONDS
        self._answers[digest] = _Answer(user, self._clock() + keep)
        self._answers.move_to_end(digest)
        while len(self._answers) > _CAPACITY:
            self._answers.popitem(last=False)
        return user

    def allows(self, user: Subject) -> bool:
        """Whether this subject may read the configuration at all."""
        return user.name in self._allowed


def service_account(namespace: str, name: str) -> str:
    """The user name of a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"
