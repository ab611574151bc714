"""The application factory: `uvicorn --factory app.main:create_app`."""

from contextlib import AbstractAsyncContextManager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app import errors
from app.documentation import DESCRIPTION
from app.lifespan import build_engine, serve
from app.middleware import Interruption, RequestContext
from app.routers import batch, health, models, openai, transcribe
from app.runtime import State
from app.settings import Settings, load_settings
from engine.interface import SpeechEngine


def create_app(settings: Settings | None = None, *, engine: SpeechEngine | None = None) -> FastAPI:
    """Build the service; nothing is started before its lifespan is.

    Args:
        settings: read from the profile and the environment when None.
        engine: the one the settings ask for when None.

    Raises:
        SettingsError: the profile or the environment cannot be served.
    """
    settings = settings or load_settings()
    engine = engine or build_engine(settings)

    def lifespan(_: FastAPI) -> AbstractAsyncContextManager[State]:
        return serve(settings, engine)

    # Swagger UI with its scripts served from here: the page works without internet.
    app: FastAPI = FastAPIOffline(
        title="omnihear",
        version=version("omnihear"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        static_url="/docs/static",
        swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": -1},
    )
    app.add_middleware(Interruption)
    app.add_middleware(RequestContext)
    errors.install(app)
    for router in (transcribe.router, batch.router, openai.router, models.router, health.router):
        app.include_router(router)
    return app
