"""What is planned and launched: grids as populations, here, on several workers, or by Slurm."""
