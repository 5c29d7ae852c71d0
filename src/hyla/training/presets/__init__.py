"""Settings of Table A3 and their smaller scales, as YAML."""
