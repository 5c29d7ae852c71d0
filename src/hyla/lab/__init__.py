"""The lab: sweeps and where they run, the paper's figures and tables, the store and the report."""
