"""Logging: one line a record, to standard error."""

import logging.config


def configure(level: str) -> None:
    """Set up the service's loggers; vLLM keeps its own."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": "%(asctime)s %(levelname)-8s %(name)s: %(message)s"}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "loggers": {
                name: {"level": level.upper(), "handlers": ["stderr"], "propagate": False}
                for name in ("app", "engine", "uvicorn")
            },
        }
    )
