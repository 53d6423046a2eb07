"""The commands of the command line: `fit`, `predict`, `compare`, `info` and `show`, on tables in files."""
