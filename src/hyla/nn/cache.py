"""Keys and values kept between the steps of causal decoding."""

import torch
from jaxtyping import Float
from torch import Tensor


class KeyValueCache:
    """Room for the keys and values of one layer. HYLA needs one, as softmax attention does.

    The buffers are taken with the first `append`, in its dtype and on its device. They are written
    in place: decode under `torch.no_grad()` or `torch.inference_mode()`, all steps alike.
    """

    def __init__(self, max_length: int):
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.max_length = max_length
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(
        self, keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B T H Dv"]
    ) -> tuple[Float[Tensor, "B Tk H D"], Float[Tensor, "B Tk H Dv"]]:
        """Store the new tokens and return all keys and values so far."""
        stop = self.length + keys.shape[1]
        if stop > self.max_length:
            raise ValueError(
                f"the cache holds {self.max_length} tokens and {stop} are needed; "
                "create it with a larger max_length"
            )
        if self._keys is None or self._values is None:
            self._keys = _room(keys, self.max_length)
            self._values = _room(values, self.max_length)
        if self._keys.shape[0] != keys.shape[0]:
            raise ValueError(
                f"the cache was filled with a batch of {self._keys.shape[0]}, "
                f"now {keys.shape[0]} sequences came; use one cache per batch"
            )
        self._keys[:, self.length : stop] = keys
        self._values[:, self.length : stop] = values
        self.length = stop
        return self._keys[:, :stop], self._values[:, :stop]


def _room(like: Tensor, length: int) -> Tensor:
    return torch.empty(like.shape[0], length, *like.shape[2:], dtype=like.dtype, device=like.device)
