"""What the source of a model's class says about its attention, before anything is built."""

import inspect
import re
import sys

from torch import nn
from transformers import PreTrainedModel

# A table of attention classes by name, of which ours are not: SAM_VISION_ATTENTION_CLASSES[...]
_TABLE = re.compile(r"(?<!ALL)_ATTENTION_CLASSES\[")


def may_use_interface(model: PreTrainedModel) -> bool:
    """Whether there is hope: False where the model's own source never speaks of the interface.

    Only the call itself proves anything; but those that cannot call are better told at once.
    """
    if not model._can_set_attn_implementation():
        try:
            source = inspect.getsource(sys.modules[type(model).__module__])
        except (OSError, TypeError, KeyError):  # defined in a notebook
            return True
        if "ALL_ATTENTION_FUNCTIONS" not in source:
            return False
    return not any(_TABLE.search(source) for source in _sources_of_parts(type(model)))


def _sources_of_parts(model_class: type) -> list[str]:
    """Return the sources of the class and of the modules that it is made of.

    Models inside it are left out: they are asked for themselves.
    """
    module = sys.modules.get(model_class.__module__)
    sources, waiting, seen = [], [model_class], {model_class}
    while waiting:
        try:
            sources.append(inspect.getsource(waiting.pop()))
        except (OSError, TypeError):
            continue
        for word in set(re.findall(r"\w+", sources[-1])):
            part = getattr(module, word, None)
            if not (inspect.isclass(part) and issubclass(part, nn.Module)) or part in seen:
                continue
            if not issubclass(part, PreTrainedModel):
                seen.add(part)
                waiting.append(part)
    return sources
