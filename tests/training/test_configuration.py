from pathlib import Path

import pytest

from training.codecs import CODECS
from training.configuration import load

CONFIGS = sorted((Path(__file__).parents[2] / "training" / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_valid_and_names_codecs_that_there_are(path: Path) -> None:
    configuration = load(path)

    assert set(configuration.augmentation.codecs) <= set(CODECS)
    assert all(each.package or each.form == "templates" for each in configuration.synthesis.texts)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("steps = 6", "", "name steps or minutes"),
        ("steps = 6", "stepz = 8", "stepz"),
        ("rooms = 0.2", "rooms = 2", "rooms"),
        ("seed = 1", "seed = ", "smoke"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    smoke = next(path for path in CONFIGS if path.stem == "smoke")
    (tmp_path / "smoke.toml").write_text(smoke.read_text().replace(old, new, 1))

    with pytest.raises(SystemExit, match=named):
        load(tmp_path / "smoke.toml")
