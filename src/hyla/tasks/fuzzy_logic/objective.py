"""How fuzzy logic is scored."""

from torch import Tensor

from hyla.tasks.base import Batch


class Regression:
    """Fuzzy logic: squared error of the query token, R² against each task's own variance."""

    headline = "r2"

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean squared error of the query."""
        return self._squared_error(logits, batch).mean()

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Squared errors, and R² = 1 - error² / variance of the task's targets, task by task."""
        error = self._squared_error(logits, batch)
        variance = batch.targets.var(dim=-1, correction=0)
        return {
            "instances": error.new_full((), error.shape[0]),
            "loss": error.sum(),
            "r2": (1 - error / variance).sum(),
        }

    def finish(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means over the instances."""
        return {name: sums[name] / sums["instances"] for name in ("loss", "r2")}

    @staticmethod
    def _squared_error(logits: Tensor, batch: Batch) -> Tensor:
        return (logits[:, -1, 0].float() - batch.targets[:, -1]).square()
