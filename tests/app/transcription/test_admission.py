import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.transcription.admission import BYTES_PER_SECOND, FIRST_RATE, Admission, Rate, Ticket
from app.transcription.clients import Clients
from app.transcription.exceptions import ClientBusyError, OverloadedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def make(*, max_requests: int = 100, max_audio_seconds: float = 1000, clients: Clients | None = None) -> Admission:
    return Admission(
        max_requests=max_requests,
        max_audio_seconds=max_audio_seconds,
        segment_seconds=10,
        clients=clients or Clients(max_requests=None, per_minute=None),
        waiting=lambda: 1,
    )


def enter(admission: Admission, stack: ExitStack, seconds: float, client: str | None = None) -> Ticket:
    return stack.enter_context(admission.enter(client=client, n_bytes=round(seconds * BYTES_PER_SECOND)))


def file_of(folder: Path, seconds: float) -> Path:
    path = folder / f"{seconds}"
    with path.open("wb") as file:
        file.truncate(round(seconds * BYTES_PER_SECOND))
    return path


def test_requests_are_bounded_and_come_free_again() -> None:
    admission = make(max_requests=2)
    with ExitStack() as first, ExitStack() as second:
        enter(admission, first, 1)
        enter(admission, second, 1)
        with pytest.raises(OverloadedError) as refused:
            enter(admission, second, 1)
        first.close()
        enter(admission, second, 1)
        assert admission.requests == 2

    assert admission.requests == 0
    assert refused.value.limit is not None
    assert refused.value.limit.setting == "OMNIHEAR_CONCURRENCY_MAX_REQUESTS"


def test_audio_seconds_are_bounded_but_a_single_request_always_fits() -> None:
    admission = make(max_audio_seconds=1000)
    with ExitStack() as stack:
        enter(admission, stack, 5000)
        with pytest.raises(OverloadedError) as refused:
            enter(admission, stack, 1)
    with ExitStack() as stack:
        for _ in range(10):
            enter(admission, stack, 100)
        with pytest.raises(OverloadedError):
            enter(admission, stack, 1)

    assert refused.value.limit is not None
    assert refused.value.limit.setting == "OMNIHEAR_CONCURRENCY_MAX_AUDIO_SECONDS"
    assert admission.audio_seconds == 0


def test_what_decoding_tells_replaces_the_estimate_and_what_is_done_counts_no_more(tmp_path: Path) -> None:
    admission = make()
    with ExitStack() as stack:
        ticket = enter(admission, stack, 100)
        with ticket.share(file_of(tmp_path, 90)) as share:
            assert ticket.seconds == pytest.approx(100)  # framing included
            share.expect(600)
            assert admission.audio_seconds == pytest.approx(610)
            share.done(200)
            share.done(150)
            assert admission.audio_seconds == pytest.approx(260)
            share.done(1e9)
            assert admission.audio_seconds == pytest.approx(10)
        assert admission.audio_seconds == pytest.approx(10)


def test_the_files_of_a_batch_share_its_estimate(tmp_path: Path) -> None:
    admission = make()
    with ExitStack() as stack:
        ticket = enter(admission, stack, 100)
        with ticket.share(file_of(tmp_path, 30)) as one, ticket.share(file_of(tmp_path, 60)) as two:
            assert ticket.seconds == pytest.approx(100)
            one.expect(3)
            two.expect(6)
            assert ticket.seconds == pytest.approx(19)


def test_the_rate_is_what_is_done_while_work_waits(clock: list[float]) -> None:
    rate = Rate()
    assert rate.value == FIRST_RATE
    for _ in range(100):
        clock[0] += 0.5
        rate.note(25, busy=True)
    assert rate.value == pytest.approx(50, rel=0.1)
    rate.note(0, busy=False)
    for _ in range(100):  # a quiet hour
        clock[0] += 36
        rate.note(3, busy=False)
    assert rate.value == pytest.approx(50, rel=0.1)
    rate.note(0, busy=True)
    for _ in range(200):  # the machine has got slower
        clock[0] += 1
        rate.note(10, busy=True)
    assert rate.value == pytest.approx(10, rel=0.1)


def retry_after(admission: Admission, stack: ExitStack, seconds: float) -> float:
    with pytest.raises(OverloadedError) as refused:
        enter(admission, stack, seconds)
    return refused.value.retry_after


def test_the_wait_for_seconds_is_what_has_to_be_done_before_they_fit() -> None:
    admission = make(max_audio_seconds=1000)
    with ExitStack() as stack:
        enter(admission, stack, 900)
        assert retry_after(admission, stack, 300) == pytest.approx(200 / FIRST_RATE, rel=0.01)
        assert retry_after(admission, stack, 5000) == pytest.approx(900 / FIRST_RATE, rel=0.01)


def test_the_wait_for_a_place_is_until_the_first_request_has_had_its_turns() -> None:
    with ExitStack() as stack:
        admission = make(max_requests=3, max_audio_seconds=10_000)
        for seconds in (900, 5, 900):
            enter(admission, stack, seconds)
        assert retry_after(admission, stack, 1) == pytest.approx(5 / FIRST_RATE, rel=0.01)
    with ExitStack() as stack:
        admission = make(max_requests=3, max_audio_seconds=10_000)
        for seconds in (900, 100, 60):
            enter(admission, stack, seconds)
        assert retry_after(admission, stack, 1) == pytest.approx((60 + 2 * 55) / FIRST_RATE, rel=0.01)


def test_a_client_waits_for_its_own_requests() -> None:
    admission = make(clients=Clients(max_requests=1, per_minute=None))
    with ExitStack() as stack:
        enter(admission, stack, 100, "a")
        enter(admission, stack, 10, "b")
        with pytest.raises(ClientBusyError) as refused:
            enter(admission, stack, 1, "a")
        enter(admission, stack, 1, None)

    assert refused.value.retry_after == pytest.approx((100 + 10) / FIRST_RATE, rel=0.1)
