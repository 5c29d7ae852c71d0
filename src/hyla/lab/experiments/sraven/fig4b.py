"""Figure 4B: more instances, deeper models."""

from hyla.lab.experiments.shared.scaling import scaling_figure

EXPERIMENT = scaling_figure("B", "model.num_layers", "depth", "depths")
