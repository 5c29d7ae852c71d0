"""`hyla explore`: the page to look at models with."""

import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hyla._optional import needed
from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.options import check_folders
from hyla.commands.shared.output import Screen
from hyla.results.folders import find_runs


def explore(
    runs: list[str] | None = None,
    /,
    *,
    root: Path = Path("runs"),
    port: int = 8420,
    host: str = "127.0.0.1",
    open_page: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
) -> None:
    """Explore trained models in the browser: solve puzzles beside them, read and swap their codes.

    Without RUN, small models that come with hyla are shown. The page stays on this machine: it
    loads nothing from elsewhere, and no other machine can open it. Ctrl-C ends it.

    Examples:

    - `hyla explore`
    - `hyla explore runs/sraven-hyla-0123456789ab`
    - `hyla explore runs/tutorial`: all runs in a folder
    - `hyla explore --no-open --port 0`: any free port, on a machine that is reached by a tunnel
    - `hyla explore --host 0.0.0.0`: for others too, who need the token in the printed address

    Parameters
    ----------
    runs
        Runs of fuzzy or sraven to look at: their folders, folders of such, or names under --root.
    root
        Folder of the run directories, for comparing runs.
    port
        Port of the page; 0 takes any that is free.
    host
        Address to listen at. Any but this machine's own asks visitors for a token.
    open_page
        Whether to open the page in a browser.
    """
    with needed("explorer"):
        from hyla.explorer.web.app import build_app
        from hyla.explorer.web.server import address, listen, new_token, serve
    from hyla.explorer.gallery import open_gallery
    from hyla.explorer.runs import RunFolder
    from hyla.explorer.web.security import Access

    screen = Screen()
    with usage_errors():
        check_folders(root=root)
        found = [find_runs(run, root) for run in runs or ()]
        paths = [path for some in found for path in some]
        # Who names a run wants that one; of a folder, what can be explored.
        of_folders = any(len(some) > 1 for some in found)
        gallery = open_gallery(paths, leave_out=screen.say if of_folders else None)
        listening = listen(host, port)
    token = new_token(host)
    app = build_app(gallery, RunFolder(root), Access(host=host, token=token))
    url = address(host, listening, token)
    screen.say(f"The explorer is at {url}")
    if token is not None:
        screen.say(
            "Others can connect: whoever has this address can use it, and what they see travels "
            "unencrypted."
        )
    screen.print("Ctrl-C ends it.")
    with listening:
        # Where there is no browser, the printed address has to do.
        serve(app, listening, on_ready=lambda: open_page and webbrowser.open(url))
