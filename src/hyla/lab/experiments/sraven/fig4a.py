"""Figure 4A: more instances, wider models."""

from hyla.lab.experiments.shared.scaling import scaling_figure

EXPERIMENT = scaling_figure("A", "model.width_factor", "width", "widths")
