"""What one client may take of the service, where clients are known by their keys."""

import time
from collections import Counter
from collections.abc import Callable

from app.transcription.exceptions import ClientBusyError, Limit, RateLimitedError


class Clients:
    """Limits each client by itself; those that nobody names are not limited.

    The rate is kept as one time for each client (the generic cell rate algorithm, ITU-T I.371): a minute's worth may
    come at once, after that one request for each place that comes free.
    """

    def __init__(self, *, max_requests: int | None, per_minute: int | None) -> None:
        """Set up.

        Args:
            max_requests: of one client at once, None for any number.
            per_minute: requests of one client, None for any number.
        """
        self._max_requests = max_requests
        self._per_minute = per_minute
        self._running: Counter[str] = Counter()
        self._spent_until: dict[str, float] = {}  # when the rate will have made up for all requests, monotonic clock

    def enter(self, client: str | None, *, wait: Callable[[], float]) -> None:
        """Count a request that begins.

        Args:
            wait: estimates when the first of the client's requests ends.

        Raises:
            OverloadedError: it is one too many.
        """
        if client is None:
            return
        if self._max_requests is not None and self._running[client] >= self._max_requests:
            limit = Limit("requests of one client at once", self._max_requests, "OMNIHEAR_CLIENTS_MAX_REQUESTS")
            msg = f"{self._max_requests} requests with this key are being served; wait for one of them"
            raise ClientBusyError(msg, retry_after=wait(), limit=limit)
        if self._per_minute is not None:
            self._spend(client, self._per_minute)
        self._running[client] += 1

    def _spend(self, client: str, per_minute: int) -> None:
        now = time.monotonic()
        spent_until = max(now, self._spent_until.get(client, now)) + 60 / per_minute
        if spent_until - now > 60 + 1e-6:
            limit = Limit("requests of one client a minute", per_minute, "OMNIHEAR_CLIENTS_REQUESTS_PER_MINUTE")
            msg = f"more than {per_minute} requests a minute came with this key; slow down"
            raise RateLimitedError(msg, retry_after=spent_until - now - 60, limit=limit)
        self._spent_until[client] = spent_until

    def leave(self, client: str | None) -> None:
        """Count a request that has ended."""
        if client is not None:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]
