"""The same language model as a single plain file of PyTorch would have it, to compare speeds with.

In the style of nanoGPT: one projection for queries, keys and values, PyTorch's fused attention,
cross-entropy on all logits at once, autocast, `torch.compile` on the whole model, fused AdamW,
batches cut from an array at random offsets. Softmax attention, rotary positions, biases, LayerNorm,
GELU and tied embeddings as in `hyla.nn`, so that with the same weights it has the same loss.
"""

from typing import Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from hyla.nn import Transformer, TransformerConfig
from hyla.nn.transformer import LAYER_NORM_EPS


class PlainBlock(nn.Module):
    """Attention and MLP."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        width = config.embed_dim
        self.heads = config.num_heads
        self.norm_1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.up = nn.Linear(width, config.mlp_dim)
        self.down = nn.Linear(config.mlp_dim, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the block."""
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(C, dim=2)
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """The decoder with its loss."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.input_dim, config.embed_dim)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.embed_dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(config.embed_dim, config.input_dim, bias=False)
        self.head.weight = self.embedding.weight
        size = config.embed_dim // config.num_heads
        frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(config.sequence_length)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))

    def load(self, model: Transformer) -> None:
        """Take the weights of our model."""
        ours = model.state_dict()
        weights = {
            "embedding.weight": ours["embedding.weight"],
            "head.weight": ours["embedding.weight"],
            "norm.weight": ours["final_norm.weight"],
            "norm.bias": ours["final_norm.bias"],
        }
        names = {
            "norm_1": "attention_norm",
            "out": "attention.out_proj",
            "norm_2": "feed_forward_norm",
            "up": "feed_forward.up",
            "down": "feed_forward.down",
        }
        for i in range(len(self.blocks)):
            for kind in ("weight", "bias"):
                for theirs, name in names.items():
                    weights[f"blocks.{i}.{theirs}.{kind}"] = ours[f"blocks.{i}.{name}.{kind}"]
                weights[f"blocks.{i}.qkv.{kind}"] = torch.cat(
                    [ours[f"blocks.{i}.attention.{part}_proj.{kind}"] for part in "qkv"]
                )
        self.load_state_dict(weights)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.type_as(x)


class PlainLoop:
    """The training loop around it."""

    def __init__(
        self,
        model: PlainGPT,
        tokens: np.ndarray,
        *,
        batch_size: int,
        length: int,
        device: torch.device,
        compile: bool,
    ):
        self.device = device
        self._tokens, self._batch_size, self._length = tokens, batch_size, length
        self.model: Any = torch.compile(model) if compile else model
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=1e-3,
            betas=(0.9, 0.999),
            fused=True,
        )

    def take(self) -> None:
        """Take a step."""
        inputs, targets = self._batch()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _batch(self) -> tuple[Tensor, Tensor]:
        offsets = torch.randint(len(self._tokens) - self._length, (self._batch_size,)).tolist()
        x, y = (torch.stack([self._cut(offset + shift) for offset in offsets]) for shift in (0, 1))
        if self.device.type == "cuda":
            x = x.pin_memory().to(self.device, non_blocking=True)
            y = y.pin_memory().to(self.device, non_blocking=True)
        return x, y

    def _cut(self, start: int) -> Tensor:
        return torch.from_numpy(self._tokens[start : start + self._length].astype(np.int64))
