"""From the stream of a request's body to a file in the spool folder and the fields beside it.

The body is never held whole: parts named `audio` or `file` go to disk as they arrive, and limits hold while reading.
"""

import asyncio
import filecmp
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import anyio.to_thread
from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)
from starlette.requests import ClientDisconnect, Request

from app.settings import Limits
from app.transcription.exceptions import (
    ClientGoneError,
    InvalidFieldError,
    Limit,
    MalformedRequestError,
    SlowUploadError,
    TooLargeError,
)

AUDIO_FIELDS: Final = ("audio", "file")
_MAX_FIELD_BYTES = 64 * 1024  # of one text field; the prompt's own limit is far below
_MAX_PARTS = 64
_BLOCK = 1024 * 1024  # bytes collected before a thread writes them
_LONGEST_NAME = 1024  # bytes of a part that could be a file's name in place of the file


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One audio part of a form.

    Attributes:
        field: name of the part, `audio` or `file`.
        name: as the client calls it; to be shown, never to be used as a path.
        path: in the spool folder.
        fault: why it cannot be audio, where that is plain.
    """

    field: str
    name: str | None
    path: Path
    fault: InvalidFieldError | None = None

    def check(self) -> None:
        """Raise the fault, if there is one."""
        if self.fault is not None:
            raise self.fault


@dataclass(frozen=True, slots=True)
class BatchUpload:
    """What a request for several files carries, each in order of arrival."""

    files: tuple[UploadedFile, ...]
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Upload:
    """What a request carries.

    Attributes:
        path: the audio, in the spool folder given to `read_upload`.
        fields: all others in order of arrival; a name may come more than once.
        url: where the audio is, when it is not at `path` yet.
    """

    path: Path
    fields: tuple[tuple[str, str], ...]
    url: str | None = None


async def read_upload(request: Request, spool: Path, limits: Limits) -> Upload:
    """Read a form, or the bare audio with the fields in the query; or, in place of the audio, its URL.

    Args:
        request: multipart/form-data, the audio, or a JSON object of fields with `url` among them.
        spool: folder of this request alone; its owner removes it.
        limits: of which those of the upload hold here.

    Raises:
        TooLargeError: as soon as the limit is passed, before the rest is read.
        MalformedRequestError: not a form, broken form.
        ClientGoneError: the body is not complete and never will be.
        SlowUploadError: it takes too long.
        InvalidFieldError: no audio, several, text in its place, or audio and a URL.
    """
    query = tuple(request.query_params.multi_items())
    if (form := await _read_form(request, spool, limits)) is not None:
        fields = (*query, *form.fields)
        if (url := _url_in(fields)) is None:
            return Upload(form.audio(), fields)
        if form.has_audio:
            raise _both()
        return Upload(spool / "upload", fields, url)
    path = spool / "upload"
    with path.open("wb") as sink:
        async for block in _bounded(request, limits):
            await anyio.to_thread.run_sync(sink.write, block)
    fields, is_json = query, request.headers.get("content-type", "").lower().startswith("application/json")
    if is_json and (body := _json_object(path)) is not None:
        fields = (*query, *body)
        path.write_bytes(b"")
    has_audio, url = path.stat().st_size > 0, _url_in(fields)
    if url is not None:
        if has_audio:
            raise _both()
        return Upload(path, fields, url)
    if not has_audio:
        msg = "the request has no audio: send it as the body, or as `audio` of a form: curl -F audio=@clip.wav"
        raise InvalidFieldError(msg, param="audio", code="missing_audio")
    return Upload(path, fields)


async def read_form(request: Request, spool: Path, limits: Limits) -> Upload:
    """Read a form with one audio part into `spool`, as OpenAI's API wants it.

    Raises:
        as `read_upload` does.
    """
    form = await _read_form(request, spool, limits)
    if form is None:
        msg = "send multipart/form-data with the audio in `file`: curl -F file=@clip.wav"
        raise MalformedRequestError(msg, param="file")
    return Upload(form.audio(), (*request.query_params.multi_items(), *form.fields))


def _url_in(fields: Iterable[tuple[str, str]]) -> str | None:
    return next((value.strip() for name, value in fields if name == "url" and value.strip()), None)


def _both() -> InvalidFieldError:
    return InvalidFieldError("give the audio or its `url`, not both", param="url", code="several_audio_parts")


def _json_object(path: Path) -> list[tuple[str, str]] | None:
    """The fields that a JSON body holds; None for what is no object, and so may be audio under a wrong type.

    Raises:
        MalformedRequestError: it begins like an object and is none.
        InvalidFieldError: a value is an object.
    """
    with path.open("rb") as file:
        if not file.read(64).lstrip().startswith(b"{"):
            return None
    if path.stat().st_size > _MAX_FIELD_BYTES:
        msg = f"the JSON body is longer than {_MAX_FIELD_BYTES} bytes; it holds fields, the audio goes into a form"
        raise MalformedRequestError(msg)
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        msg = f"the JSON body is broken: {error}"
        raise MalformedRequestError(msg) from error
    fields: list[tuple[str, str]] = []
    for name, value in body.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict | list):
                raise InvalidFieldError(f"`{name}` is not text, a number or a list of them", param=name)
            if each is not None:
                fields.append((name, each if isinstance(each, str) else json.dumps(each)))
    return fields


async def read_batch(request: Request, spool: Path, limits: Limits) -> BatchUpload:
    """Read a form with any number of audio parts into `spool`.

    Raises:
        TooLargeError, MalformedRequestError, ClientGoneError: as `read_upload` does.
        InvalidFieldError: no audio.
    """
    form = await _read_form(request, spool, limits)
    if form is None:
        msg = "send multipart/form-data with several `audio` parts: curl -F audio=@a.wav -F audio=@b.wav"
        raise MalformedRequestError(msg, param="audio")
    return BatchUpload(form.all_audio(), (*request.query_params.multi_items(), *form.fields))


async def _read_form(request: Request, spool: Path, limits: Limits) -> "_Form | None":
    """The form that the body is, None where it is something else and has not been read."""
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    if content_type.lower() != "multipart/form-data":
        return None
    if not options.get("boundary"):
        msg = "Content-Type multipart/form-data names no boundary; let your HTTP client set this header"
        raise MalformedRequestError(msg)
    form = _Form(spool)
    try:
        await form.read(_bounded(request, limits), options["boundary"])
    finally:
        form.close()
    return form


async def _bounded(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """Blocks of the body of about _BLOCK bytes; stops reading where the limit is passed."""
    allowed = int(limits.max_upload_bytes)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > allowed:
        raise _too_large(allowed, f"{announced} bytes were announced")
    total = 0
    block = bytearray()
    try:
        async for chunk in _in_time(request.stream(), limits):
            total += len(chunk)
            if total > allowed:
                raise _too_large(allowed, "reading stopped there")
            block += chunk
            if len(block) >= _BLOCK:
                yield bytes(block)
                block.clear()
    except ClientDisconnect as error:
        msg = "the client left before the body was complete"
        raise ClientGoneError(msg) from error
    if block:
        yield bytes(block)


async def _in_time(chunks: AsyncGenerator[bytes, None], limits: Limits) -> AsyncIterator[bytes]:
    """Pass on what comes while it comes fast enough; only time that was spent waiting for the client counts."""
    clock = asyncio.get_running_loop().time
    patience, n_bytes = limits.upload_idle_seconds, 0
    while True:
        # What has come earns time for what follows, as in Apache's mod_reqtimeout.
        began, earned = clock(), n_bytes / limits.min_upload_rate
        allowed = min(limits.upload_idle_seconds, patience + earned)
        try:
            async with asyncio.timeout(allowed):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise _too_slow(limits, idle=allowed == limits.upload_idle_seconds) from None
        if chunk is None:
            return
        patience -= clock() - began
        n_bytes += len(chunk)
        yield chunk


def _too_slow(limits: Limits, *, idle: bool) -> SlowUploadError:
    if idle:
        limit = Limit("seconds without upload", limits.upload_idle_seconds, "OMNIHEAR_LIMITS_UPLOAD_IDLE_SECONDS")
        return SlowUploadError(f"nothing of the upload came for {limit.value:g} s; send it again", limit=limit)
    limit = Limit("least upload bytes a second", limits.min_upload_rate, "OMNIHEAR_LIMITS_MIN_UPLOAD_RATE")
    return SlowUploadError(
        f"the upload came with less than {limit.value:g} bytes a second; send it in parts, or in a compressed format",
        limit=limit,
    )


def _too_large(allowed: int, seen: str) -> TooLargeError:
    limit = Limit("request body bytes", allowed, "OMNIHEAR_LIMITS_MAX_UPLOAD_BYTES")
    return TooLargeError(
        f"the upload is larger than {allowed} bytes ({seen}); send a compressed format such as Opus, or split it",
        limit=limit,
    )


@dataclass
class _Form:
    """A multipart form as it arrives (RFC 7578)."""

    spool: Path
    fields: list[tuple[str, str]] = field(default_factory=list)
    _files: list[UploadedFile] = field(default_factory=list)
    _text: bytearray = field(default_factory=bytearray)
    _segment: MultipartSegment | None = None
    _sink: BinaryIO | None = None

    async def read(self, blocks: AsyncIterator[bytes], boundary: str) -> None:
        try:
            parser = PushMultipartParser(boundary, max_segment_count=_MAX_PARTS)
            async for block in blocks:
                await anyio.to_thread.run_sync(self._parse, parser, block)
            parser.close()
        except ParserLimitReached as error:
            msg = f"the form has more than {_MAX_PARTS} parts, or a part's header is too long"
            raise MalformedRequestError(msg) from error
        except MultipartError as error:
            msg = f"the multipart form is broken: {error}"
            raise MalformedRequestError(msg) from error

    def _parse(self, parser: PushMultipartParser, block: bytes) -> None:
        for event in parser.parse(block):
            if isinstance(event, MultipartSegment):
                self._begin(event)
            elif event is None:
                self._end()
            elif self._sink is not None:
                self._sink.write(event)
            else:
                self._text += event
                if len(self._text) > _MAX_FIELD_BYTES:
                    name = self._name()
                    limit = Limit("field bytes", _MAX_FIELD_BYTES, "not adjustable")
                    raise InvalidFieldError(
                        f"`{name}` is longer than {_MAX_FIELD_BYTES} bytes", param=name, limit=limit
                    )

    def _begin(self, segment: MultipartSegment) -> None:
        self._segment = segment
        self._text.clear()
        if segment.name in AUDIO_FIELDS:
            path = self.spool / f"upload-{len(self._files)}"
            self._sink = path.open("wb")
            self._files.append(UploadedFile(segment.name, segment.filename, path))
        elif segment.filename is not None:
            name = self._name()
            msg = f"`{name}` is a file; the audio belongs in `audio` (or `file`)"
            raise InvalidFieldError(msg, param=name, code="unknown_field")

    def _end(self) -> None:
        if self._sink is None:
            try:
                self.fields.append((self._name(), self._text.decode()))
            except UnicodeDecodeError as error:
                raise InvalidFieldError(f"`{self._name()}` is not UTF-8 text", param=self._name()) from error
            return
        self._sink.close()
        self._sink = None
        if self._files[-1].name is None:
            self._files[-1] = replace(self._files[-1], fault=_name_of_file(self._files[-1]))

    def _name(self) -> str:
        return str(self._segment.name) if self._segment is not None else ""

    def close(self) -> None:
        """Close what a broken form has left open."""
        if self._sink is not None:
            self._sink.close()

    @property
    def has_audio(self) -> bool:
        """Whether there is an audio part."""
        return bool(self._files)

    def all_audio(self) -> tuple[UploadedFile, ...]:
        """All audio parts, at least one.

        Raises:
            InvalidFieldError: none.
        """
        if not self._files:
            given = ", ".join(f"`{name}`" for name, _ in self.fields) or "none"
            msg = (
                f"the form has no audio: send it as `audio` (or `file`): curl -F audio=@clip.wav; fields given: {given}"
            )
            raise InvalidFieldError(msg, param="audio", code="missing_audio")
        return tuple(self._files)

    def audio(self) -> Path:
        """The one audio part.

        Raises:
            InvalidFieldError: none, several, or text in its place.
        """
        first, *others = self.all_audio()
        for file in (first, *others):
            file.check()
        for other in others:
            # The same file under both names is what a client sends that knows both.
            if other.field == first.field or not filecmp.cmp(first.path, other.path, shallow=False):
                msg = "the form has several audio parts; send them to /v1/transcribe/batch, or one by one"
                raise InvalidFieldError(msg, param=other.field, code="several_audio_parts")
        return first.path


def _name_of_file(file: UploadedFile) -> InvalidFieldError | None:
    """A short line of text without a filename is what `curl -F audio=clip.wav` sends."""
    if not 0 < file.path.stat().st_size <= _LONGEST_NAME:
        return None
    try:
        text = file.path.read_bytes().decode()
    except UnicodeDecodeError:
        return None
    if not text.isprintable():
        return None
    field = file.field
    msg = f"`{field}` holds text, not a file; with curl put an @ before the file's name: -F {field}=@clip.wav"
    return InvalidFieldError(msg, param=field, code="audio_not_a_file")
