"""The lab: what is asked, planned and launched, and said: the paper's figures and tables by name.

`run` does in one call what `hyla reproduce` and `hyla sweep` do.
"""

from hyla.lab.api import run

__all__ = ["run"]
