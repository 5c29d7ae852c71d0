"""Language: corpora of text as tokens on disk, in an order that is a function of (seed, step).

Reading a prepared corpus needs NumPy alone; preparing one needs SentencePiece, and datasets for
those of the Hugging Face hub (the extra ``language``).
"""

from hyla.tasks.language.corpora import CorpusError, HubDataset, TextFiles
from hyla.tasks.language.corpus import Corpus
from hyla.tasks.language.prepare import CorpusConfig, prepare
from hyla.tasks.language.tokenizer import Tokenizer, train_tokenizer
from hyla.tasks.language.windows import TrainingOrder, Windows

__all__ = [
    "Corpus",
    "CorpusConfig",
    "CorpusError",
    "HubDataset",
    "TextFiles",
    "Tokenizer",
    "TrainingOrder",
    "Windows",
    "prepare",
    "train_tokenizer",
]
