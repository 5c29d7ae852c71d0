"""`hyla doctor`: what is installed here, what runs here, and whether it computes the right thing.

Needs torch alone, so that it also works where half of an installation is missing:
`python -m hyla.doctor`.
"""

from hyla.doctor.examination import diagnose

__all__ = ["diagnose"]
