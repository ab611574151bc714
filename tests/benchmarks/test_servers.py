import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.settings import load_settings
from benchmarks.servers import Launch, omnihear, random_weights, running, stock
from engine.config import EngineConfig

PLUGIN_LOADED = "import sys, vllm.plugins; vllm.plugins.load_general_plugins(); print('engine.plugin' in sys.modules)"


def test_a_server_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    launch = Launch(command=(sys.executable, "-c", "print('no such model'); raise SystemExit(3)"))

    with pytest.raises(RuntimeError, match=r"ended with status 3(.|\n)*no such model"), running(launch, tmp_path):
        pytest.fail("it is not running")


def test_a_launch_reads_as_one_would_type_it() -> None:
    launch = Launch(command=(sys.executable, "-m", "x", '{"a": 1}'), environment={"NONE": "", "ONE": "a b"})

    assert str(launch) == """NONE='' ONE='a b' python -m x '{"a": 1}'"""


def test_the_profile_is_handed_on() -> None:
    assert omnihear(profile="compile").command[-2:] == ("--profile", "compile")
    assert "--profile" not in omnihear().command


def test_random_weights_are_served_without_guards_and_with_answers_of_a_fixed_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = omnihear(profile="max", environment=random_weights(tmp_path), tokens=30)
    for name, value in launch.environment.items():
        monkeypatch.setenv(name, value)

    settings = load_settings("max")

    assert launch.command[1:4] == ("-m", "benchmarks.fixed_answers", "30")
    assert (settings.engine.model, settings.engine.load_format) == (str(tmp_path), "dummy")
    assert not any(settings.guards.model_dump().values())


def test_the_stock_server_serves_the_same_model() -> None:
    launch = stock(EngineConfig(model="omni-tiny-en", max_model_len=1900))

    command = str(launch)
    assert "--model models/omni-tiny-en " in command
    assert "--max-model-len 1900 " in command
    assert launch.url is not None
    assert command.endswith(launch.url.rpartition(":")[2])


@pytest.mark.engine
@pytest.mark.parametrize(("environment", "loaded"), [({}, "True"), (stock(EngineConfig()).environment, "False")])
def test_the_stock_server_does_not_load_our_plugin(environment: dict[str, str], loaded: str) -> None:
    """Also that it would without the setting, or the test could not fail."""
    process = subprocess.run(
        [sys.executable, "-c", PLUGIN_LOADED],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout.splitlines()[-1] == loaded
