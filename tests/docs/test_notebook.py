"""The tutorial notebook runs from its first cell to its last."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent.parent / "notebooks" / "tutorial.ipynb"


def executed(folder: Path) -> list[str]:
    """Run the notebook in a folder of its own; return what its cells printed."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute()  # raises with the traceback of a cell that fails
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    return [output["text"] for output in outputs if output["output_type"] == "stream"]


# The kernel talks over sockets that nbclient leaves to the garbage collector.
sockets_left_open = pytest.mark.filterwarnings("ignore::ResourceWarning")


@sockets_left_open
def test_the_notebook_runs_in_short(tmp_path, monkeypatch):
    monkeypatch.setenv("HYLA_NOTEBOOK_STEPS", "10")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    printed = executed(tmp_path)
    difference = next(text for text in printed if text.startswith("largest difference"))
    assert float(difference.rpartition(" ")[2]) < 1e-12


@sockets_left_open
@pytest.mark.slow
def test_the_notebook_runs_as_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("HYLA_NOTEBOOK_STEPS", raising=False)
    executed(tmp_path)


def test_the_notebook_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
