"""Errors that a user can act on: what is wrong, where, and how to mend it."""


class InputError(Exception):
    """Bad usage or bad input; the command line prints it and exits with 2.

    ``what`` says what is wrong, ``where`` names the file and row (or the option), ``fix`` the remedy.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(
            "; ".join(part for part in (what, where and f"at {where}", fix and f"fix: {fix}") if part)
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Cross process borders with all three parts (a pool worker may raise this)."""
        return _rebuild, (type(self), self.what, self.where, self.fix)


class PolicyError(InputError):
    """A policy raised, returned NaN, named an engine that isn't there, or stalled the engine."""


def _rebuild(kind: type[InputError], what: str, where: str, fix: str) -> InputError:
    return kind(what, where=where, fix=fix)
