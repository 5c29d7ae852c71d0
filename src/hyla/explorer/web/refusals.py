"""What a request may be refused for; the message says why, and what would do."""


class RefusedError(Exception):
    """The request is well formed, but cannot be answered."""

    status = 409


class NotThereError(RefusedError):
    """It names a model, a puzzle or a run that there is not."""

    status = 404
