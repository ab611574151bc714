import time

import pytest

from app.transcription.clients import Clients
from app.transcription.exceptions import ClientBusyError, RateLimitedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_each_client_has_its_own_requests_at_once() -> None:
    clients = Clients(max_requests=2, per_minute=None)
    for client in ("a", "a", "b", None, None, None):
        clients.enter(client, wait=lambda: 7.0)
    with pytest.raises(ClientBusyError) as refused:
        clients.enter("a", wait=lambda: 7.0)
    clients.leave("a")
    clients.enter("a", wait=lambda: 7.0)

    assert refused.value.retry_after == 7.0
    assert refused.value.limit is not None
    assert refused.value.limit.setting == "OMNIHEAR_CLIENTS_MAX_REQUESTS"


def test_a_minutes_worth_may_come_at_once_and_then_one_by_one(clock: list[float]) -> None:
    clients = Clients(max_requests=None, per_minute=6)
    for _ in range(6):
        clients.enter("a", wait=lambda: 0.0)
    with pytest.raises(RateLimitedError) as refused:
        clients.enter("a", wait=lambda: 0.0)
    clients.enter("b", wait=lambda: 0.0)

    assert refused.value.retry_after == pytest.approx(10)
    clock[0] += refused.value.retry_after - 0.01
    with pytest.raises(RateLimitedError):
        clients.enter("a", wait=lambda: 0.0)
    clock[0] += 0.02
    clients.enter("a", wait=lambda: 0.0)
    clock[0] += 3600
    for _ in range(6):
        clients.enter("a", wait=lambda: 0.0)
    with pytest.raises(RateLimitedError):
        clients.enter("a", wait=lambda: 0.0)
