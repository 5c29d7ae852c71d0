"""Figures: one description, drawn by matplotlib for files and by plotly for the page."""
