"""What is said: sections beside the paper's numbers, as files and pages."""
