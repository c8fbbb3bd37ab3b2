"""First come first served, whoever fits: the study's policy 1, with which it also calibrated its load."""

from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo
from schedulers.published._formulas import GROWTH_SWITCH, prompt_fits
from schedulers.view import View


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first that fits, pass the others."""
    return TAKE if prompt_fits(view, request, view.params[0]) else WAIT


POLICY = EnginePolicy(
    name="fifo@published",
    admit=admit,
    scan="skip",
    params=(GROWTH_SWITCH,),
    memo=Memo(engines=3),
    source="doi 10.5281/zenodo.22306798",
)
