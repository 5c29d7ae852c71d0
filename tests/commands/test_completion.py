"""The tab key: what `hyla --install-completion` installs is asked as bash would ask it."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

# bash calls the function that `complete` names with the words typed so far, and reads COMPREPLY.
ASK = """
source "$HOME/.bashrc"
function=$(complete -p hyla | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"$function" hyla "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    subprocess.run(
        [sys.executable, "-m", "hyla", "--install-completion", "--shell", "bash"],
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        check=True,
    )
    return folder


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["hyla", "do"], ["doctor"]),
        (["hyla", "train", "--model.num-l"], ["--model.num-layers"]),
        (["hyla", "bench", "--dev"], ["--device"]),
        (["hyla", "train", ""], ["language", "fuzzy", "sraven", "recall"]),
        (["hyla", "train", "fuzzy", "--attention", "so"], ["softmax"]),
        (["hyla", "train", "fuzzy", "--scale", ""], ["smoke", "laptop", "paper"]),
    ],
    ids=["command", "nested option", "option", "task", "attention", "scale"],
)
def test_bash_completes(home, words, completed):
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", *words],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [word.strip() for word in done.stdout.splitlines()] == completed
