"""GET /v1/models"""

from fastapi import APIRouter

from app.dependencies import RuntimeDep
from app.schemas.service import Model, ModelList

router = APIRouter(tags=["service"])


@router.get("/v1/models", summary="Names that requests may use")
async def list_models(runtime: RuntimeDep) -> ModelList:
    """The served model first, then its aliases."""
    names = runtime.settings.model_names
    return ModelList(data=[Model(id=name, created=int(runtime.started)) for name in names])
