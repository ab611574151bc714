import pytest
from typer.testing import CliRunner

from app import cli
from app.settings import profile_names


def test_profiles_prints_every_profile_as_it_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_LIMITS_MAX_CHANNELS", "3")
    monkeypatch.setenv("COLUMNS", "300")

    result = CliRunner().invoke(cli.cli, ["profiles"])

    assert result.exit_code == 0
    for name in profile_names():
        assert name in result.output
    (line,) = [line for line in result.output.splitlines() if "limits.max_channels" in line]
    assert line.count(" 3 ") == len(profile_names())


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli.cli, ["--help"])

    assert result.exit_code == 0
    assert "serve" in result.output
    assert "profiles" in result.output


def test_settings_that_cannot_be_served_end_the_command_readably(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMNIHEAR_SERVER_PORT", "http")
    monkeypatch.setattr("sys.argv", ["omnihear", "serve"])

    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "OMNIHEAR_SERVER_PORT" in message
    assert "Traceback" not in message
