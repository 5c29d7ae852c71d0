"""From one attention to another: a model that begins as a finished run's and learns its layers.

Every parameter that both models have is copied, the projections of attention included. In the first
steps of the new run, each attention layer then learns to give what the old layer gives, on the
inputs of the old layer. Nothing else is trained in these steps, which makes the layers independent.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hyla._hooks import hooks_removed
from hyla.nn import MultiHeadAttention, Transformer
from hyla.tasks.language import Corpus
from hyla.tasks.language.shards import TOKENIZER
from hyla.training.identity import fingerprint
from hyla.training.language.config import LanguageConfig, language_config_of_run
from hyla.training.loading import newest_parameters
from hyla.training.run.checkpoints.sharded import ShardedCheckpoints
from hyla.training.run.errors import describe_failure
from hyla.training.run.reading import read_config, read_finished

_OWN = ("attention", "backend")
"""Settings of a model in which the new one may differ from the old."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A finished run that another one begins from."""

    path: Path
    tree: Mapping[str, Any]
    """Its config, as its directory holds it."""
    config: LanguageConfig

    @classmethod
    def open(cls, path: Path | str, corpus: Corpus) -> "Source":
        """Read the config of a run; a ValueError if no model on `corpus` can begin from it."""
        path = Path(path)
        tree = read_config(path)
        if tree.get("task_name") != "language":
            raise ValueError(f"{path} is a run of {tree.get('task_name')}, not of language")
        if read_finished(path) is None:
            raise ValueError(
                f"{path} is not finished: run the command that began it once more, to its end"
            )
        try:
            tokenizer = (path / TOKENIZER).read_bytes()
        except OSError as error:
            raise ValueError(describe_failure(path / TOKENIZER, error)) from error
        if tokenizer != corpus.tokenizer_path.read_bytes():
            raise ValueError(
                f"{path} was trained with another tokenizer than that of {corpus.path}: prepare "
                f"the text with `hyla data prepare OUT FILES --tokenizer {path / TOKENIZER}`"
            )
        config = language_config_of_run(tree, corpus.vocab_size)
        return cls(path=path, tree=tree, config=config)

    def settings(self) -> dict[str, Any]:
        """Return the settings of a run that begins from here, to go over a preset's."""
        shape = {name: value for name, value in self.tree["model"].items() if name not in _OWN}
        return {"model": shape, "conversion": {"source": fingerprint(self.tree)}}

    def check(self, config: LanguageConfig) -> None:
        """Raise a ValueError if the run of `config` cannot begin from here."""
        if config.conversion is None or config.conversion.source != fingerprint(self.tree):
            raise ValueError(f"the config is not that of a run that begins from {self.path}")
        old, new = asdict(self.config.model), asdict(config.model)
        others = [name for name in old if name not in _OWN and old[name] != new[name]]
        if others:
            raise ValueError(
                f"the new model must have the shape of {self.path}, so leave out "
                + ", ".join(f"model.{name} {new[name]} (there {old[name]})" for name in others)
            )

    def parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters, on the CPU."""
        return newest_parameters(self.path, self.tree, ShardedCheckpoints)[1]

    def model(self, device: torch.device) -> Transformer:
        """Return the trained model, to learn from."""
        model = Transformer(replace(self.config.model, backend="auto"))
        copy_shared_(model, self.parameters())
        return model.to(device).for_long_sequences().eval().requires_grad_(False)


@torch.no_grad()
def copy_shared_(model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Copy what has the same name into `model`; what only one of the two has is left alone."""
    for name, parameter in model.named_parameters():
        if name in parameters:
            parameter.copy_(parameters[name])


class Distillation:
    """How far each attention layer of a model is from that of another, on the inputs of the other.

    Called with tokens as a language model is, it gives the mean over the layers. None of their
    parameters is another's, and Adam does not mind the scale: each is trained as if alone.
    """

    def __init__(self, teacher: Transformer, student: Transformer):
        self._teacher = teacher
        self._layers = list(zip(_attention(teacher), _attention(student), strict=True))

    def __call__(self, tokens: Int[Tensor, "B T+1"]) -> Float[Tensor, ""]:
        """Return the mean of `errors`."""
        return self.errors(tokens[:, :-1]).mean()

    def errors(self, inputs: Int[Tensor, "B T"]) -> Float[Tensor, " layers"]:
        """Return the mean squared error of each layer."""
        calls: dict[nn.Module, tuple[Any, Any, Tensor]] = {}

        def keep(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            calls[layer] = args, kwargs, output

        hooks = [old.register_forward_hook(keep, with_kwargs=True) for old, _ in self._layers]
        with hooks_removed(hooks), torch.no_grad():
            self._teacher.features(inputs)
        errors = []
        for old, new in self._layers:
            args, kwargs, output = calls[old]
            errors.append(F.mse_loss(new(*args, **kwargs).float(), output.float()))
        return torch.stack(errors)


def _attention(model: Transformer) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
