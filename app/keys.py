"""API keys: who may use the service, known by hashes alone.

An entry is `KEY` or `NAME KEY`, where KEY is the key itself or `sha256:` and the hexadecimal digest of it. Entries come
from settings, separated by commas or lines, and from a file, one a line, with `#` before comments. Several keys may
have one name: they are one client.
"""

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

SHORTEST_KEY: Final = 16  # characters; a fast hash protects only what cannot be guessed
RELOAD_SECONDS: Final = 1.0  # between two looks at the file
_HASHED: Final = "sha256:"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_KEY = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

Holders = dict[bytes, str]
"""SHA-256 of a key -> the client who holds it."""


class KeyRefusedError(Exception):
    """The request has no key, or one that nobody holds.

    Attributes:
        headers: of the answer (RFC 6750, 3).
    """

    def __init__(self, *, given: bool) -> None:
        super().__init__(
            "this API key is not valid; ask the operator for one"
            if given
            else "an API key is needed: send it as `Authorization: Bearer KEY` (`api_key` of OpenAI's SDKs)"
        )
        self.code = "invalid_api_key" if given else "missing_api_key"
        fault = ', error="invalid_token"' if given else ""
        self.headers = {"WWW-Authenticate": f'Bearer realm="omnihear"{fault}'}


class KeyRing:
    """The keys that are valid now; the file is looked at again as it changes."""

    def __init__(
        self, entries: str = "", file: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the keys.

        Args:
            entries: valid as long as the process.
            file: may change: keys that are no longer in it are refused within RELOAD_SECONDS.

        Raises:
            ValueError: an entry or the file cannot be used; says which, never the key.
        """
        self._fixed = parse_entries(re.split(r"[,\n]", entries))
        self._file = file
        self._clock = clock
        self._seen = _version(file) if file is not None else None
        self._from_file = _read(file) if file is not None else {}
        self._looked = clock()

    def __bool__(self) -> bool:
        """Whether keys are asked for at all."""
        return bool(self._fixed) or self._file is not None

    def holder(self, key: str) -> str | None:
        """The client who holds a key, None where nobody does.

        Takes the same time whichever of the keys it is, and however much of it is right.
        """
        self._look()
        digest = hashlib.sha256(key.encode()).digest()
        found = None
        for known, client in (*self._fixed.items(), *self._from_file.items()):
            if hmac.compare_digest(known, digest):
                found = client
        return found

    def _look(self) -> None:
        """Read the file again where it has changed; what cannot be read leaves the keys as they are."""
        if self._file is None or self._clock() - self._looked < RELOAD_SECONDS:
            return
        self._looked = self._clock()
        if (version := _version(self._file)) == self._seen:
            return
        self._seen = version
        try:
            self._from_file = _read(self._file)
        except ValueError as error:
            logger.error("API keys were not read again, those before stay valid: %s", error)  # noqa: TRY400
        else:
            logger.info("API keys were read again: %d in the file", len(self._from_file))


def parse_entries(lines: Iterable[str]) -> Holders:
    """Read entries; blank ones and comments are skipped.

    Raises:
        ValueError: names the entry by its number, never by its text.
    """
    holders: Holders = {}
    for number, line in enumerate(lines, 1):
        words = [] if line.lstrip().startswith("#") else line.split()
        if not words:
            continue
        *names, key = words
        if len(names) > 1 or not all(_NAME.fullmatch(name) for name in names):
            msg = f"entry {number} of the API keys: write KEY or NAME KEY; a name has letters, digits and . _ - only"
            raise ValueError(msg)
        digest = _digest(key, number)
        holders[digest] = names[0] if names else f"key-{digest.hex()[:8]}"
    return holders


def _digest(key: str, number: int) -> bytes:
    if key.startswith(_HASHED):
        digest = key.removeprefix(_HASHED)
        if not _DIGEST.fullmatch(digest):
            msg = f"entry {number} of the API keys: after `{_HASHED}` come 64 hexadecimal digits"
            raise ValueError(msg)
        return bytes.fromhex(digest)
    if len(key) < SHORTEST_KEY or not _KEY.fullmatch(key):
        msg = (
            f"entry {number} of the API keys: a key has at least {SHORTEST_KEY} visible ASCII characters; "
            "`openssl rand -hex 24` makes one"
        )
        raise ValueError(msg)
    return hashlib.sha256(key.encode()).digest()


def _read(file: Path) -> Holders:
    try:
        holders = parse_entries(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        msg = f"{file}: cannot be read: {reason}"
        raise ValueError(msg) from None
    except ValueError as error:
        msg = f"{file}: {error}"
        raise ValueError(msg) from None
    if not holders:
        msg = f"{file}: holds no API key"
        raise ValueError(msg)
    return holders


def _version(file: Path) -> tuple[int, int, int] | None:
    """Changes when the file is written or replaced, behind symbolic links too, as Kubernetes does; None without one."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
