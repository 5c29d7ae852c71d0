"""The latent code of attention: read it, decode it, and intervene on it, in any transformer.

The scores of a query-key pair across the heads are a code for the operation that attention performs
on that pair (section 2.1 of the paper). Here are the tools to look at that code and to test the
claim: recording (`record_codes`), geometry and decoding with controls, and swapping codes between
instances (`Swaps`), for the models of this package and for those of Hugging Face.
"""

from hyla.latents.analysis import TABLES, Analysis
from hyla.latents.capture import record_codes, run_recorded, stream_codes
from hyla.latents.files import read_codes, write_codes
from hyla.latents.hypernetworks import ValueNetworks, value_networks
from hyla.latents.intervene import edited, moved, replaced, zeroed
from hyla.latents.measures.geometry import (
    cosine_similarities,
    distance_table,
    embedding_table,
    mean_codes,
    sample_codes,
)
from hyla.latents.measures.probe import decoding_table
from hyla.latents.measures.swap_tables import head_table, swap_matrix, swap_table
from hyla.latents.measures.swaps import CODES, Swaps
from hyla.latents.observe import Site, UnsupportedModelError
from hyla.latents.table import CodeTable
from hyla.tasks.study import Specimens, Study, study_of

__all__ = [
    "CODES",
    "TABLES",
    "Analysis",
    "CodeTable",
    "Site",
    "Specimens",
    "Study",
    "Swaps",
    "UnsupportedModelError",
    "ValueNetworks",
    "cosine_similarities",
    "decoding_table",
    "distance_table",
    "edited",
    "embedding_table",
    "head_table",
    "mean_codes",
    "moved",
    "read_codes",
    "record_codes",
    "replaced",
    "run_recorded",
    "sample_codes",
    "stream_codes",
    "study_of",
    "swap_matrix",
    "swap_table",
    "value_networks",
    "write_codes",
    "zeroed",
]
