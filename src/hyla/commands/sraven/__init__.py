"""`hyla sraven`: names its subcommands, one module each."""

from cyclopts import App

from hyla.commands.sraven.audit import audit
from hyla.commands.sraven.export import export
from hyla.commands.sraven.leaderboard import leaderboard
from hyla.commands.sraven.predict import predict
from hyla.commands.sraven.show import show
from hyla.commands.sraven.submit import submit
from hyla.commands.sraven.think import think
from hyla.commands.sraven.variants import variants

_INTRO = """Look at SRAVEN, the paper's symbolic Raven matrices, and compare models on it.

An instance is known by its split, seed and index, and is the same in every form: in training, in
the terminal, in a picture, in a Parquet file.
"""

sraven = App(name="sraven", help=_INTRO)
_commands = (show, export, audit, variants, predict, submit, leaderboard, think)
for _position, _command in enumerate(_commands):
    sraven.command(_command, sort_key=_position)
