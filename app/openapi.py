"""Writes the OpenAPI document, or checks that the committed one is what the service serves."""

import json
import sys
from pathlib import Path

from app.main import create_app
from app.settings import load_settings
from engine.scripted import ScriptedEngine


def document() -> str:
    """The document as it is committed: indented, in the order of the routes."""
    app = create_app(load_settings("cpu"), engine=ScriptedEngine())
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write to the path named, or compare with it after `--check`; 1 where they differ."""
    path = Path(arguments[-1])
    if arguments[0] != "--check":
        path.write_text(document(), encoding="utf-8")
        return 0
    if not path.is_file() or path.read_text(encoding="utf-8") != document():
        sys.stderr.write(f"{path} is not what the service serves; run `make openapi`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
