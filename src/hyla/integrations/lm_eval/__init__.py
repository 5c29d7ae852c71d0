"""SRAVEN as tasks of lm-evaluation-harness, which finds them by its `--include_path`.

>>> from hyla.integrations.lm_eval import FOLDER  # doctest: +SKIP
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""What to give to `lm_eval --include_path`."""
