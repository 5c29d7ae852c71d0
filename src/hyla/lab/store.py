"""The earlier name of `hyla.results.runs`."""

from hyla.results.runs import curve_rows, final_rows, load_model, read_run, read_runs

__all__ = ["curve_rows", "final_rows", "load_model", "read_run", "read_runs"]
