"""How `models/omni-tiny-en` is made: synthesize, augment, pack, train, evaluate, export; README.md has the commands."""
