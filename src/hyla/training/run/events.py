"""The steps after which a run logs or evaluates, whatever it trains."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Events:
    """The multiples of some periods, and the last step."""

    steps: int
    periods: tuple[int, ...]

    def after(self, step: int) -> int:
        """Return the first event after a step."""
        return min(self.steps, *(step - step % period + period for period in self.periods))

    def last(self, step: int) -> int:
        """Return the last event up to and including a step; 0 before any."""
        if step >= self.steps:
            return self.steps
        return max(step - step % period for period in self.periods)

    def __contains__(self, step: int) -> bool:
        return step > 0 and step == self.after(step - 1)
