"""What a soak sends: good requests of every form, bad ones, and some whose clients leave."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests import audio_factory as factory
from tests.hostile.mutations import inputs

Kind = Literal["good", "bad", "cancelled"]

CLIPS: Final = ("library-us-female.wav", "test-flite-male.wav", "bridge-uk-female.wav")
LONG: Final = "harbor-story-long.flac"
CONTAINERS: Final = tuple(factory.FORMATS)
FORMS: Final = ("json", "text", "srt", "vtt", "verbose_json")
LONG_SHARE: Final = 0.02
BAD_SHARE, CANCELLED_SHARE = 0.3, 0.1


@dataclass(frozen=True, slots=True)
class Request:
    """One request as httpx takes it.

    Attributes:
        name: what is sent, such as "json of library-us-female.wav as mp3"; the same name, the same answer.
        post: arguments of `httpx.AsyncClient.post`.
        leaves_after: seconds after which the client leaves, None where it waits.
    """

    name: str
    kind: Kind
    post: dict[str, Any] = field(hash=False)
    leaves_after: float | None = None


class Mixture:
    """Requests without end, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._files: dict[tuple[str, str], bytes] = {}
        self._broken = list(inputs(400, seed=seed))

    def requests(self, count: int) -> Iterator[Request]:
        """So many."""
        rng = self._rng
        for _ in range(count):
            chance = rng.random()
            if chance < BAD_SHARE:
                yield self._bad()
                continue
            good = self._good()
            if chance < BAD_SHARE + CANCELLED_SHARE:
                yield Request(good.name, "cancelled", good.post, rng.uniform(0, 0.7) ** 2)
            else:
                yield good

    def _good(self) -> Request:
        rng = self._rng
        clip = LONG if rng.random() < LONG_SHARE else rng.choice(CLIPS)
        container, form = rng.choice(CONTAINERS), rng.choice(FORMS)
        file = self._file(clip, container)
        name = f"{form} of {clip} as {container}"
        part = {"file": ("clip", file)}
        way = rng.randrange(6)
        if way == 0:
            return Request(f"{name}, bare", "good", {"url": f"/v1/transcribe?response_format={form}", "content": file})
        if way == 1:
            data = {"response_format": form, "model": "whisper-1"}
            return Request(f"{name}, OpenAI", "good", {"url": "/v1/audio/transcriptions", "files": part, "data": data})
        if way == 2:
            form = rng.choice(("json", "verbose_json"))
            data = {"response_format": form, "stream": "true"}
            return Request(
                f"stream, {form} of {clip} as {container}",
                "good",
                {"url": "/v1/transcribe", "files": part, "data": data},
            )
        if way == 3:
            second = rng.choice(CLIPS)
            files = [("audio", ("a", file)), ("audio", ("b", self._file(second, "flac")))]
            data = {"response_format": form}
            return Request(
                f"batch, {name} and {second}", "good", {"url": "/v1/transcribe/batch", "files": files, "data": data}
            )
        if way == 4:
            data = {"response_format": form, "channels": "separate"}
            return Request(f"{name}, channels", "good", {"url": "/v1/transcribe", "files": part, "data": data})
        return Request(name, "good", {"url": "/v1/transcribe", "files": part, "data": {"response_format": form}})

    def _bad(self) -> Request:
        rng = self._rng
        file = self._file(rng.choice(CLIPS), "wav")
        broken = rng.choice(self._broken)
        faults: list[tuple[str, dict[str, Any]]] = [
            (f"broken {broken.container}", {"url": "/v1/transcribe", "content": broken.data}),
            (f"broken {broken.container}", {"url": "/v1/audio/transcriptions", "files": {"file": ("x", broken.data)}}),
            ("no audio", {"url": "/v1/transcribe", "data": {"language": "en"}}),
            ("unknown field", {"url": "/v1/transcribe", "files": {"file": file}, "data": {"colour": "red"}}),
            ("unknown language", {"url": "/v1/transcribe", "files": {"file": file}, "data": {"language": "xx"}}),
            ("unknown model", {"url": "/v1/audio/transcriptions", "files": {"file": file}, "data": {"model": "none"}}),
            ("temperature", {"url": "/v1/transcribe", "files": {"file": file}, "data": {"temperature": "NaN"}}),
            ("url that is not allowed", {"url": "/v1/transcribe", "json": {"url": "https://media.example.org/a.mp3"}}),
            ("no form", {"url": "/v1/audio/transcriptions", "content": file}),
        ]
        name, post = rng.choice(faults)
        return Request(name, "bad", post)

    def _file(self, clip: str, container: str) -> bytes:
        key = clip, container
        if key not in self._files:
            self._files[key] = factory.encode(factory.clip(clip), container)
        return self._files[key]
