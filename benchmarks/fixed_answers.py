"""The command `omnihear` with answers of a fixed length: `python -m benchmarks.fixed_answers 30 serve --profile max`.

Random weights never say that they have finished. Everything else is the service as it is.
"""

import sys

# Nothing else: decode workers run this module again, see `app.transcription.preparation.Preparer`.


def main(tokens: int) -> None:
    """Run `omnihear` on an engine that writes this many tokens for each segment, unless the model ends before."""
    from collections.abc import AsyncGenerator
    from dataclasses import replace
    from unittest.mock import patch

    import app.cli
    from app.settings import Settings
    from engine.engine_process import EngineProcess
    from engine.interface import SpeechEngine, SpeechOutput, SpeechRequest

    class FixedAnswers(EngineProcess):
        """Sets the budget of each request."""

        async def generate(
            self, request: SpeechRequest, *, incremental: bool = False
        ) -> AsyncGenerator[SpeechOutput, None]:
            request = replace(request, max_tokens=tokens)
            async for output in super().generate(request, incremental=incremental):
                yield output

    def build_engine(settings: Settings) -> SpeechEngine:
        return FixedAnswers(settings.engine)

    with patch("app.main.build_engine", build_engine):
        app.cli.main()


if __name__ == "__main__":
    main(int(sys.argv.pop(1)))
