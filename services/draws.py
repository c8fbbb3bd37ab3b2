"""How an engine draws tokens, beyond the temperature: the fields of an OpenAI body that a real engine heeds."""

from msgspec import Struct, json, structs


class Draws(Struct):
    """Fields of an OpenAI body as vLLM knows them; None leaves the engine's own. Others are ignored."""

    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


def draws_of(passed_on: bytes) -> dict[str, float]:
    """Return what is told of them in a JSON object, b"" for none; raises msgspec.MsgspecError for another form."""
    if not passed_on:
        return {}
    told = structs.asdict(json.decode(passed_on, type=Draws))
    return {name: value for name, value in told.items() if value is not None}
