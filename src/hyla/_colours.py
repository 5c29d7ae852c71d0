"""Okabe and Ito's colours, told apart by colour-blind readers too: for all that is drawn."""

VERMILION = "#D55E00"
BLUE = "#0072B2"
GREEN = "#009E73"
PINK = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
