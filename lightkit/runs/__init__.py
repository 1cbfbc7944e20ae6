"""Run folders: where a new one goes, writing one, finding old ones, and reading what is in them."""
