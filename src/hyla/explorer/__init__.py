"""The explorer: a local web page to solve puzzles beside a model, read its code, and swap it.

`hyla explore` starts it. Nothing is imported here: reading a packed model needs no web server.
"""
