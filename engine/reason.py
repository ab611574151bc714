"""Why something under vLLM failed, in one line."""

from pydantic import ValidationError


def reason_of(error: BaseException) -> str:
    """The line that tells a reader most.

    vLLM checks its arguments with pydantic, whose messages end in an address to read; other errors are explained by
    their last line.
    """
    if isinstance(error, ValidationError):
        return "; ".join(str(fault["msg"]).removeprefix("Value error, ") for fault in error.errors())
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
