"""A pre-LN transformer for vector inputs (the tasks) and token ids (language)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hyla.attention.paths.chunking import query_rows
from hyla.nn.cache import KeyValueCache
from hyla.nn.feed_forward import GeluMlp, MixtureOfExperts, SwiGlu
from hyla.nn.initialise import initialise_linear_
from hyla.nn.multi_head_attention import MultiHeadAttention
from hyla.nn.positions import T5RelativeBias, rotary_table
from hyla.nn.transformer_config import TransformerConfig

LAYER_NORM_EPS = 1e-6


class TransformerDetails(NamedTuple):
    """What `Transformer.forward(..., details=True)` returns."""

    logits: Tensor
    codes: tuple[Tensor, ...]  # the latent code of each layer [B, H, Tq, Tk]
    load_balancing_loss: Tensor  # mean over the layers with experts; 0 without


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised input and added to the residual."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        width = config.width_factor
        embed_dim, heads = width * config.embed_dim, width * config.num_heads
        self.causal = config.causal
        self.attention_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.attention = MultiHeadAttention(
            embed_dim,
            heads,
            num_key_heads=width * config.key_heads,
            qk_dim=width * config.qk_dim,
            v_dim=width * config.v_dim,
            attention=config.attention,
            rotary=config.positions == "rotary",
            dropout=config.attention_dropout,
            backend=config.backend,
        )
        self.relative_bias = None
        if config.positions.startswith("t5"):
            self.relative_bias = T5RelativeBias(
                heads,
                num_buckets=config.sequence_length,
                max_distance=config.sequence_length,
                bidirectional=config.positions == "t5_bidirectional",
            )
        self.feed_forward_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.feed_forward = _feed_forward(config)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        cache: KeyValueCache | None,
        dropout_noise: Tensor | None,
        last: int | None,
        details: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the output, and with `details` the latent code and the load-balancing loss.

        With `last`, only that many last positions attend and are returned.
        """
        keys = x.shape[1] + (cache.length if cache is not None else 0)
        normed = self.attention_norm(x)
        context = None
        if last is not None:
            context, normed, x = normed, normed[:, -last:], x[:, -last:]
            mask, dropout_noise = (last_queries(pairs, last) for pairs in (mask, dropout_noise))
        bias = None
        if self.relative_bias is not None:
            bias = self.relative_bias.by_distance(x.shape[1], keys)
        attended = self.attention(
            normed,
            context,
            bias=bias,
            bias_masks=False,  # it is learned
            mask=mask,
            causal=self.causal,
            cache=cache,
            dropout_noise=dropout_noise,
            return_code=details,
        )
        attended, code = attended if details else (attended, None)
        x = x + attended
        normed = self.feed_forward_norm(x)
        balance = None
        if details and isinstance(self.feed_forward, MixtureOfExperts):
            balance = self.feed_forward.load_balancing_loss(normed)
        return x + self.feed_forward(normed), code, balance


class Transformer(nn.Module):
    """Embedding, pre-LN blocks, final LayerNorm, logits."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        embed_dim = config.width_factor * config.embed_dim
        self.embedding: nn.Linear | nn.Embedding
        if config.inputs == "tokens":
            self.embedding = nn.Embedding(config.input_dim, embed_dim)
        else:
            self.embedding = nn.Linear(config.input_dim, embed_dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(embed_dim, config.output_dim, bias=not config.tied)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise every parameter as in the authors' release, in a fixed order."""
        if not self.config.tied:
            initialise_linear_(self.head, generator)
        if isinstance(self.embedding, nn.Embedding):
            std = 1 / math.sqrt(self.embedding.embedding_dim)
            nn.init.normal_(self.embedding.weight, std=std, generator=generator)
        else:
            initialise_linear_(self.embedding, generator)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(
                module, MultiHeadAttention | T5RelativeBias | GeluMlp | SwiGlu | MixtureOfExperts
            ):
                module.reset_parameters(generator)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Sequence[KeyValueCache] | None = None,
        dropout_noise: Tensor | None = None,
        last: int | None = None,
        details: bool = False,
    ) -> Tensor | TransformerDetails:
        """Return logits [B, T, output_dim] for vectors [B, T, input_dim] or token ids [B, T].

        `mask` (True = attend) broadcasts to [B, H, T, T]. `cache` is one `KeyValueCache` per
        layer (`new_cache`), for causal models. `dropout_noise` [layers, T, T] replaces the layers'
        own draws for attention dropout. `last` asks for the logits of that many last positions
        alone: the same numbers, but the last block then skips all other positions. `details` also
        returns codes and load-balancing loss.
        """
        hidden, codes, balances = self._run_blocks(
            x,
            mask=mask,
            cache=cache,
            dropout_noise=dropout_noise,
            last=last,
            details=details,
        )
        logits = self.head(hidden)
        if not details:
            return logits
        balance = torch.stack(balances).mean() if balances else logits.new_zeros(())
        return TransformerDetails(logits, tuple(codes), balance)

    def features(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Sequence[KeyValueCache] | None = None,
        last: int | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """Return what the head makes logits from [B, T, embed_dim]; arguments as in `forward`.

        With `recompute`, the backward pass computes each block's activations again instead of
        keeping them; a cache would then be filled twice.
        """
        if recompute and cache is not None:
            raise ValueError("recompute takes no cache: the backward pass would fill it again")
        return self._run_blocks(x, mask=mask, cache=cache, last=last, recompute=recompute)[0]

    def _run_blocks(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        cache: Sequence[KeyValueCache] | None,
        last: int | None,
        dropout_noise: Tensor | None = None,
        details: bool = False,
        recompute: bool = False,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        self._check(x, cache, last)
        hidden = self.embedding(x)
        codes, balances = [], []
        for i, block in enumerate(self.blocks):
            options: dict[str, Any] = {
                "mask": mask,
                "cache": None if cache is None else cache[i],
                "dropout_noise": None if dropout_noise is None else dropout_noise[i],
                "last": last if block is self.blocks[-1] else None,
                "details": details,
            }
            if recompute:
                hidden, code, balance = checkpoint(block, hidden, use_reentrant=False, **options)
            else:
                hidden, code, balance = block(hidden, **options)
            if code is not None:
                codes.append(code)
            if balance is not None:
                balances.append(balance)
        return self.final_norm(hidden), codes, balances

    def for_long_sequences(self) -> "Transformer":
        """Compute with large batches of tokens in mind; the parameters and numbers stay.

        Queries, keys and values come from one product, and the angles of rotary positions from a
        table, made for where the parameters are now: compiled, a model would otherwise compute
        them anew for every head and sequence.
        """
        table = None
        if self.config.positions == "rotary":
            size = self.config.qk_dim // self.config.num_heads
            device = self.final_norm.weight.device
            table = rotary_table(0, self.config.sequence_length, size, device=device)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attention.joint_projection = True
            block.attention.rotary_table = table
        return self

    def new_cache(self, max_length: int) -> list[KeyValueCache]:
        """Return empty caches for causal decoding of up to `max_length` tokens."""
        if not self.config.causal:
            raise ValueError("only a causal model can decode with a cache; set causal=True")
        return [KeyValueCache(max_length) for _ in self.blocks]

    def _check(self, x: Tensor, cache: Sequence[KeyValueCache] | None, last: int | None) -> None:
        tokens = self.config.inputs == "tokens"
        if tokens and (x.ndim != 2 or x.is_floating_point()):
            raise ValueError(f"x must be token ids [B, T], got {x.dtype} of {tuple(x.shape)}")
        if not tokens and (x.ndim != 3 or x.shape[-1] != self.config.input_dim):
            raise ValueError(
                f"x must have shape [B, T, {self.config.input_dim}], got {tuple(x.shape)}"
            )
        if last is not None and not 1 <= last <= x.shape[1]:
            raise ValueError(f"last must lie between 1 and the {x.shape[1]} positions, got {last}")
        if cache is not None and len(cache) != len(self.blocks):
            raise ValueError(f"cache has {len(cache)} layers, the model {len(self.blocks)}")


def last_queries(pairs: Tensor | None, last: int) -> Tensor | None:
    """Cut the query axis of something that broadcasts to [..., Tq, Tk], if it has one."""
    return query_rows(pairs, slice(-last, None))


def _feed_forward(config: TransformerConfig) -> nn.Module:
    embed_dim = config.width_factor * config.embed_dim
    mlp_dim = config.width_factor * config.mlp_dim
    if config.feed_forward == "moe":
        return MixtureOfExperts(
            embed_dim, mlp_dim, num_experts=config.num_experts, top_k=config.top_k
        )
    return {"gelu": GeluMlp, "swiglu": SwiGlu}[config.feed_forward](embed_dim, mlp_dim)
