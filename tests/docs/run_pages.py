"""Run the Python of pages: `python run_pages.py PAGE...`; exits with 1 if the code of one fails.

Each page runs in a folder and a process of its own, forked from this one after the libraries were
imported: importing them takes longer than running most pages.
"""

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import torch
from markdown_blocks import blocks, page_name
from transformers import GPT2LMHeadModel, LlamaForCausalLM, Trainer  # noqa: F401

import hyla.integrations.transformers
import hyla.latents
import hyla.training.language  # noqa: F401


def run(page: Path) -> None:
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            # Blank lines in front: a traceback then names the line of the page.
            code = "\n" * (block.line - 1) + block.code
            names = dict(namespace) if block.hidden else namespace
            exec(compile(code, page_name(page), "exec"), names)


def run_apart(page: Path) -> bool:
    """Run a page in a child of this process; say whether all went well."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    code = 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            run(page)
            os.chdir("/")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads do not survive a fork
    failed = []
    for page in map(Path, sys.argv[1:]):
        start = time.perf_counter()
        if not run_apart(page):
            failed.append(page_name(page))
        print(f"{page_name(page)}: {time.perf_counter() - start:.1f} s")
    if failed:
        sys.exit(f"the code of these pages does not run: {', '.join(failed)}")
