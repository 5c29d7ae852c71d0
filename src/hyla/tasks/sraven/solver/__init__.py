"""What is known about an instance: its readings, its answer, how often there are several."""
