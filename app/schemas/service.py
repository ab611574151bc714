"""What the service says of itself."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class Model(BaseModel):
    """One served model, in OpenAI's form."""

    id: str = Field(examples=["omni-tiny-en"])
    object: Literal["model"] = "model"
    created: int = Field(description="when this service started, Unix seconds")
    owned_by: str = "omnihear"


class ModelList(BaseModel):
    """All names that requests may use."""

    object: Literal["list"] = "list"
    data: list[Model]


class Liveness(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class ReadinessReport(BaseModel):
    """Whether requests are served."""

    ready: bool
    phase: str = Field(description="what goes on", examples=["loading the model", "ready"])
    progress: float = Field(description="share of start-up that is done, 0 to 1")


class EngineReport(BaseModel):
    """What serves, for operators."""

    profile: str = Field(examples=["cpu"])
    ready: bool
    backend: str = Field(examples=["vllm"])
    model: str = Field(examples=["omni-tiny-en"])
    device: str = Field(examples=["cpu"])
    dtype: str = Field(examples=["bfloat16"])
    requests: int = Field(description="segments that the engine has not finished")
    encoder: dict[str, Any] = Field(description="modes of the audio encoder and their state")
    versions: dict[str, str] = Field(examples=[{"omnihear": "0.1.0", "vllm": "0.32.0"}])
