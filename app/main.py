"""The application factory: `uvicorn --factory app.main:create_app`."""

from contextlib import AbstractAsyncContextManager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware

from app import docs_page, errors
from app.access import key_required
from app.documentation import DESCRIPTION
from app.lifespan import build_engine, serve
from app.metrics import Metrics
from app.middleware import REQUEST_ID_HEADER, Interruption, LastResort, RequestContext
from app.routers import batch, health, metrics, models, openai, transcribe
from app.runtime import State
from app.settings import Settings, load_settings
from app.tracing import Tracing
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
    counts = Metrics()

    def lifespan(_: FastAPI) -> AbstractAsyncContextManager[State]:
        return serve(settings, engine, counts)

    # Swagger UI with its scripts served from here: the page works without internet.
    app: FastAPI = FastAPIOffline(
        title="omnihear",
        version=version("omnihear"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        static_url=docs_page.STATIC,
        swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": -1},
    )
    docs_page.install(app)
    errors.install(app)
    _add_middleware(app, settings, counts)
    keyed = key_required(settings.security.key_ring())
    for router in (transcribe.router, batch.router, openai.router, models.router, health.router):
        app.include_router(router, dependencies=keyed)
    app.include_router(health.probes)
    app.include_router(metrics.router, dependencies=[] if settings.security.open_metrics else keyed)
    return app


def _add_middleware(app: FastAPI, settings: Settings, counts: Metrics) -> None:
    """From the innermost to the outermost."""
    app.add_middleware(Interruption)
    app.add_middleware(LastResort)
    if settings.security.cors_origins:
        # No cookies and no other credentials of the browser's own are taken, so "*" gives nothing away. Any header is
        # allowed: OpenAI's SDK sends a dozen of its own.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.security.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, "Server-Timing", "Retry-After", "WWW-Authenticate"],
        )
    app.add_middleware(RequestContext, metrics=counts)
    app.add_middleware(Tracing)
