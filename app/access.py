"""Who may come in: the key of a request, where keys are asked for."""

from typing import Annotated

from fastapi import Request, Security
from fastapi.params import Depends
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from app.keys import KeyRefusedError, KeyRing

_BEARER = HTTPBearer(auto_error=False, scheme_name="Bearer", description="An API key, as OpenAI's SDKs send it.")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, scheme_name="X-API-Key", description="The same.")


def key_required(ring: KeyRing) -> list[Depends]:
    """Dependencies of routes that need a key; none where no keys are set, and the document shows none then.

    They are resolved before the body is read. `request.state.client` tells the limits whose request it is.
    """
    if not ring:
        return []

    async def check_key(
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
        header: Annotated[str | None, Security(_HEADER)],
    ) -> None:
        given = [key for key in (bearer and bearer.credentials, header) if key]
        client = next((holder for key in given if (holder := ring.holder(key)) is not None), None)
        if client is None:
            raise KeyRefusedError(given=bool(given))
        request.state.client = client

    return [Security(check_key)]
