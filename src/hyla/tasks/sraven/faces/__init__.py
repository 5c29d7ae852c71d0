"""How an instance is shown: as drawings, prompts and files."""
