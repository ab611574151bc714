"""What is asked of the service, the same for every file."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is asked of the service for every file; None leaves it to the service."""

    language: str | None = None
    prompt: str | None = None
    hotwords: tuple[str, ...] = ()
    channels: str | None = None
    temperature: float = 0.0

    def query(self) -> dict[str, Any]:
        """As the service takes them beside a bare body."""
        wishes = {
            "language": self.language,
            "prompt": self.prompt,
            "hotwords": list(self.hotwords),
            "channels": self.channels,
            "temperature": self.temperature,
            "stream": "true",
            "response_format": "verbose_json",
        }
        return {name: value for name, value in wishes.items() if value not in (None, [])}
