"""OpenTelemetry: one trace for each request, written only where an exporter is configured.

The environment variables are OpenTelemetry's own: with OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) spans are
sent there, sampled as OTEL_TRACES_SAMPLER says. Without, the API's spans record nothing.
"""

import os
from collections.abc import Mapping
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.middleware import route_of
from app.settings import SettingsError

_TRACER: Final = trace.get_tracer("omnihear")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether an exporter is configured and tracing not switched off."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environment.get(name) for name in _ENDPOINTS)


def configure() -> None:
    """Send spans where the environment says; does nothing where it says nothing, or a provider is there already.

    Raises:
        SettingsError: the protocol is none of OTLP's.
    """
    if not wanted():
        return
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    protocol = next((value for name in _PROTOCOLS if (value := os.environ.get(name))), "http/protobuf")
    exporter: SpanExporter
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter()
    elif protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter()
    else:
        msg = f"{_PROTOCOLS[1]} = {protocol!r}: use http/protobuf or grpc"
        raise SettingsError(msg)
    resource = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "omnihear"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


class Tracing:
    """The span of the whole request, child of the caller's (W3C Trace Context).

    OpenTelemetry's own instrumentation of ASGI writes the query into its spans; here that may be a prompt.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with _TRACER.start_as_current_span(
            scope["method"],
            propagate.extract(Headers(scope=scope)),
            kind=SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as current:
            status = 500

            async def send_noted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await self._app(scope, receive, send_noted)
            finally:
                self._describe(current, scope, status)

    @staticmethod
    def _describe(current: Span, scope: Scope, status: int) -> None:
        """Names and attributes of OpenTelemetry's conventions for HTTP, as far as they quote nothing of the caller."""
        state, route = scope["state"], route_of(scope)
        status = state.get("late_status", status)
        current.update_name(f"{scope['method']} {route}")
        current.set_attribute("http.request.method", scope["method"])
        current.set_attribute("http.route", route)
        current.set_attribute("http.response.status_code", status)
        current.set_attribute("omnihear.request_id", state["request_id"])
        if (code := state.get("error_code")) is not None:
            current.set_attribute("error.type", code)
        if status >= 500:
            current.set_status(Status(StatusCode.ERROR, code))
