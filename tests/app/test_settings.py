import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.settings import (
    CLIENT_KEY_VARIABLE,
    CONFIGS,
    SettingsError,
    default_profile,
    load_settings,
    profile_names,
    variables,
)
from engine.config import ROOT, vllm_arguments

ENCODER_MODES = {
    "cpu": (False, False),
    "cpu-compiled": (False, False),
    "eager": (False, False),
    "compile": (True, False),
    "cudagraph": (False, True),
    "max": (True, True),
}


KEY = "a-key-of-the-tests-0123456789"


def test_every_profile_resolves() -> None:
    assert set(ENCODER_MODES) == set(profile_names())

    for name in profile_names():
        assert name == load_settings(name).profile


@pytest.mark.parametrize(("name", "modes"), ENCODER_MODES.items())
def test_a_profile_says_which_encoder_modes_are_on(name: str, modes: tuple[bool, bool]) -> None:
    engine = load_settings(name).engine

    assert modes == (engine.compile_mm_encoder, engine.cudagraph_mm_encoder)


@pytest.mark.parametrize(("name", "modes"), ENCODER_MODES.items())
def test_each_toggle_arrives_in_vllms_compilation_config(name: str, modes: tuple[bool, bool]) -> None:
    from vllm.config import CompilationConfig

    config = CompilationConfig(**vllm_arguments(load_settings(name).engine)["compilation_config"])

    assert modes == (config.compile_mm_encoder, config.cudagraph_mm_encoder)


def test_graph_budgets_arrive_in_vllms_compilation_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_ENCODER_GRAPH_BUDGETS", "[25, 250, 750]")

    arguments = vllm_arguments(load_settings("cudagraph").engine)

    assert arguments["compilation_config"]["encoder_cudagraph_token_budgets"] == [25, 250, 750]


def test_the_cpu_is_the_default_where_vllm_is_built_for_it() -> None:
    assert default_profile() == "cpu"


def test_the_profile_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_PROFILE", "max")

    assert load_settings().profile == "max"
    assert load_settings("cpu").profile == "cpu"


@pytest.mark.parametrize("variable", sorted(set(variables()) - {"OMNIHEAR_ENGINE_ENCODER_GRAPH_BUDGETS"}))
def test_every_value_can_be_set_from_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    section, key = variables()[variable].split(".", 1)
    before = getattr(getattr(load_settings("cpu"), section), key)
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    texts = {"backend": "scripted", "dtype": "float32", "load_format": "dummy", "log_level": "debug"}
    texts |= {"log_format": "json", "api_keys_file": str(keys), "spool_dir": str(tmp_path)}
    values = {
        bool: str(not before).lower(),
        float: str(before / 2) if isinstance(before, float) else "",
        str: texts.get(key, "x"),
        SecretStr: KEY,
        tuple: {
            "languages": '["en", "de"]',
            "tasks": '["transcribe", "translate"]',
            "cudagraph_capture_sizes": "[1, 2]",
            "cors_origins": '["https://app.example.org"]',
        }.get(key, '["x"]'),
        type(None): {"cudagraph_mode": "FULL"}.get(key, "7"),
    }
    kind = next(kind for kind in (bool, int, float, str, SecretStr, tuple, type(None)) if isinstance(before, kind))
    monkeypatch.setenv(variable, str(before + 1) if kind is int else values[kind])

    after = getattr(getattr(load_settings("cpu"), section), key)

    assert after != before


def test_a_profile_may_be_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[engine]\nmodel = "omni-tiny-en"\n[limits]\nmax_upload_bytes = "1 MiB"\n')

    settings = load_settings(str(path))

    assert settings.profile == "mine"
    assert settings.limits.max_upload_bytes == 2**20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limits]\nmax_chanels = 2", ["limits.max_chanels = 2", "limits.max_channels"]),
        ("[limitz]\nmax_channels = 2", ["limitz", "no such key"]),
        (
            '[limits]\nmax_channels = "two"',
            ["limits.max_channels = 'two'", "OMNIHEAR_LIMITS_MAX_CHANNELS", "mine.toml"],
        ),
        ("[limits]\nmax_audio_seconds = -1", ["limits.max_audio_seconds = -1", "greater than 0"]),
        ("[server]\nport = 70000", ["server.port = 70000", "65535"]),
        ('[server]\nspool_dir = "/no/such"', ["server.spool_dir = '/no/such'", "OMNIHEAR_SERVER_SPOOL_DIR", "make it"]),
        ("[engine]\ncompile_mm_encoder = 3", ["engine.compile_mm_encoder = 3", "boolean"]),
        ("[engine]\nencoder_graph_budgets = [10]", ["encoder_graph_budgets", "cudagraph_mm_encoder"]),
        ("[engine]\ncudagraph_mm_encoder = true\nencoder_graph_budgets = [20, 10]", ["[20, 10]", "ascend"]),
        ("[engine]\ncudagraph_capture_sizes = [8, 8]", ["[8, 8]", "ascend"]),
        ("[engine]\nmax_model_len = 500", ["max_model_len = 500", "raise it"]),
        ('[engine]\nlanguages = ["xx"]', ["languages", "xx", "en"]),
        ("[engine]\nlanguages = []", ["languages", "at least one"]),
        (
            '[fetch]\nallowed_hosts = ["https://media.example.org/calls"]',
            ["fetch.allowed_hosts", "media.example.org/calls", "OMNIHEAR_FETCH_ALLOWED_HOSTS", "*.example.org"],
        ),
        ("[fetch]\ntimeout_seconds = 0", ["fetch.timeout_seconds = 0", "greater than 0"]),
        (
            '[security]\ncors_origins = ["app.example.org"]',
            ["cors_origins", "'app.example.org' is no origin", "https://"],
        ),
        ('[security]\ncors_origins = ["https://a.org/path"]', ["cors_origins", "no origin"]),
        ('[security]\napi_keys_file = "/nowhere/keys"', ["api_keys_file = '/nowhere/keys'", "No such file"]),
        ('[security]\napi_keys = "short"', ["security.api_keys = (not shown)", "entry 1", "at least 16"]),
        ("[engine", ["mine.toml", "TOML"]),
    ],
)
def test_what_cannot_be_served_is_named_with_value_and_remedy(text: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)

    with pytest.raises(SettingsError) as error:
        load_settings(str(path))

    for part in expected:
        assert part in str(error.value)


def test_an_unknown_variable_is_named_with_the_nearest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_LIMITS_MAX_CHANELS", "2")

    with pytest.raises(SettingsError, match=r"OMNIHEAR_LIMITS_MAX_CHANELS = '2'.*OMNIHEAR_LIMITS_MAX_CHANNELS\?"):
        load_settings("cpu")


def test_a_bad_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_SERVER_PORT", "http")

    with pytest.raises(SettingsError, match=r"server.port = 'http' \(from OMNIHEAR_SERVER_PORT\)"):
        load_settings("cpu")


def test_every_variable_that_code_and_documents_name_exists() -> None:
    sources = [*(ROOT / "app").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *CONFIGS.glob("*.md")]
    named = {name for path in sources for name in re.findall(r"\bOMNIHEAR_[A-Z]+_[A-Z_]*[A-Z]", path.read_text())}

    assert len(named) > 5
    assert named <= {*variables(), CLIENT_KEY_VARIABLE}


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"'nope'.*cpu.*eager"):
        load_settings("nope")


@pytest.mark.parametrize(
    "text",
    [
        f'[security]\napi_keys = ["{KEY}"]',
        f'[security]\napi_key = "{KEY}"',
        f'[securty]\napi_keys = "{KEY}"',
        f'[security]\napi_keys = "one two {KEY}"',
    ],
)
def test_no_message_shows_a_key_from_a_profile(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)

    with pytest.raises(SettingsError) as error:
        load_settings(str(path))

    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OMNIHEAR_SECURITY_API_KEY", KEY),
        ("OMNIHEAR_APIKEYS", KEY),
        ("OMNIHEAR_SECURITY", f'{{"api_keys": "{KEY}"}}'),
        ("OMNIHEAR_SECURITY_API_KEYS", f"one two {KEY}"),
    ],
)
def test_no_message_shows_a_key_from_the_environment(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError, match=variable) as error:
        load_settings("cpu")

    assert KEY not in str(error.value)


def test_keys_are_not_shown_among_the_resolved_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_SECURITY_API_KEYS", KEY)

    settings = load_settings("cpu")

    assert KEY not in repr(settings)
    assert KEY not in str(settings.security.api_keys)
    assert settings.security.key_ring().holder(KEY) is not None
