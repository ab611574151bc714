"""The service with engines of the scripted kind, for servers that tests start as processes of their own.

`uvicorn --factory tests.scripted_service:create`; what happens to a request is in its id.
"""

import asyncio

from fastapi import FastAPI

from app.main import create_app
from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine, speak_length


def create() -> FastAPI:
    """Requests named `never...` stall, and `die...` ends the engine."""

    def script(request: SpeechRequest) -> Act:
        if request.request_id.startswith("never"):
            return Act(gate=asyncio.Event())
        if request.request_id.startswith("die"):
            return Act(die=True)
        return speak_length(request)

    return create_app(engine=ScriptedEngine(script))


def unstartable() -> FastAPI:
    """The engine does not start."""
    return create_app(engine=ScriptedEngine(start_error="no such model: set OMNIHEAR_ENGINE_MODEL"))
