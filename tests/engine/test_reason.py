import pytest
from pydantic import BaseModel, ValidationError, field_validator

from engine.reason import reason_of


class Length(BaseModel):
    tokens: int

    @field_validator("tokens")
    @classmethod
    def _short(cls, value: int) -> int:
        if value > 2048:
            msg = f"tokens ({value}) is greater than the model's 2048"
            raise ValueError(msg)
        return value


def test_pydantic_tells_what_is_wrong_and_not_where_to_read_about_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Length(tokens=4096)
    assert reason_of(caught.value) == "tokens (4096) is greater than the model's 2048"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("context\n\nthe reason\n"), "the reason"), (KeyError("name"), "'name'"), (OSError(), "OSError")],
)
def test_others_tell_it_in_their_last_line(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
