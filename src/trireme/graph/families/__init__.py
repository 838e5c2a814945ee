"""One file per group of public model families; each turns a config.json into a ModelGraph."""
